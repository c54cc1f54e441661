// FailureLinger: a thread that still informs other ranks after this rank's call has raised its
// error.
//
// A rank that cannot make a group tells the others why. Ranks that arrive later must be told, too,
// and rank 0's process often serves the store that carries the news. So a thread stays for them,
// while the user's program continues. The process waits for this thread before it ends.
#pragma once

#include <functional>
#include <string>

namespace q7x2 {

/// Runs `work` in its own thread. `work` must end within a bounded time, and soon after the check
/// that it is given throws. If no thread can be created, `work` is not run.
void begin_failure_linger(const std::string& group,
                          std::function<void(const std::function<void()>& check)> work);
/// Ends the threads for the group with this name, which is about to be made again.
void end_failure_lingers(const std::string& group);
/// Waits for all threads. `interrupt` is called repeatedly; if it throws, they are ended at once.
void finish_failure_lingers(const std::function<void()>& interrupt) noexcept;

}  // namespace q7x2
