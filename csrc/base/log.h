// What q7x2 says on stderr: one line per message, "q7x2: warning: ...".
#pragma once

#include <string_view>

namespace q7x2 {

enum class Level { kWarn, kInfo, kDebug };

/// Whether messages of `level` are written. Q7X2_LOG says so: off, warn, info or debug; unset:
/// warn. Asked before a message is made that costs time. Any thread.
bool logs(Level level);

/// Writes one line to stderr, at once and as a whole, if messages of `level` are written. Never
/// throws; a line that cannot be written is lost. Any thread.
void log(Level level, std::string_view text) noexcept;

/// What Q7X2_LOG asks for. Throws Error(kInvalidArgument) if it is none of the four words.
void check_log_setting();

}  // namespace q7x2
