// FailureLinger: what a rank still does for others when its own call has raised an error already.
//
// A rank that cannot make a group tells the others why. Those that come later must be told too, and
// rank 0's process often owns the store that carries the news. So a thread of its own stays for
// them, while the user's program goes on. The end of the process waits for it.
#pragma once

#include <functional>
#include <string>

namespace q7x2 {

/// Runs `work` in a thread of its own. `work` must end within a bounded time, and soon after the
/// check that it is given throws. If no thread can be had, nothing is run.
void begin_failure_linger(const std::string& group,
                          std::function<void(const std::function<void()>& check)> work);
/// Ends those of a group of this name, which is about to be made again.
void end_failure_lingers(const std::string& group);
/// Waits for all of them. `interrupt` is called now and then; if it throws, they are ended at once.
void finish_failure_lingers(const std::function<void()>& interrupt) noexcept;

}  // namespace q7x2
