#include "src/cli/app.h"

int main(int argc, char** argv) { return topkv::cli::run_app(argc, argv); }
