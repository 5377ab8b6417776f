// Long work that is watched by the thread that asked for it.
#pragma once

#include <functional>
#include <stop_token>

namespace topkv {

/// Runs work on a thread of its own, with as many threads of TBB as this one has, in an arena of
/// its own, and calls beat on this thread several times a second until the work has ended. When
/// beat throws, the work is asked to stop, by the token that it is given and that check_stop()
/// looks at (stopping.h), and once it has ended the exception of beat is rethrown; otherwise that
/// of the work, if it threw one.
void run_watched(const std::function<void(const std::stop_token&)>& work,
                 const std::function<void()>& beat);

}  // namespace topkv
