// The command line as a whole: commands, usage errors and exit statuses.
#pragma once

namespace topkv::cli {

/// Runs the tool and returns its exit status: 0 done, 1 error, 2 usage error, 130 interrupted.
/// Errors are one line on stderr.
int run_app(int argc, const char* const* argv);

}  // namespace topkv::cli
