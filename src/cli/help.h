// The texts of --help. Written by hand, so that each fits one screen; a test checks that every
// flag is in them, and nothing else.
#pragma once

namespace topkv::cli {

extern const char* const main_help;
extern const char* const needle_help;
extern const char* const generate_help;
extern const char* const chat_help;
extern const char* const prefill_help;
extern const char* const ask_help;
extern const char* const serve_help;
extern const char* const verify_help;
extern const char* const info_help;
extern const char* const plan_help;
extern const char* const bench_help;
extern const char* const fidelity_help;
extern const char* const eval_help;

}  // namespace topkv::cli
