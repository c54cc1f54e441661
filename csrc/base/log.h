// Writes messages to stderr, one line per message: "q7x2: warning: ...".
#pragma once

#include <string_view>

namespace q7x2 {

enum class Level { kWarn, kInfo, kDebug };

/// Whether messages of `level` are written. Q7X2_LOG says so: off, warn, info or debug; unset:
/// warn. To be called before making a message takes time. Any thread.
bool logs(Level level);

/// Writes one line to stderr, at once and in one piece, if messages of `level` are written. Never
/// throws; a line that cannot be written is lost. Any thread.
void log(Level level, std::string_view text) noexcept;

/// Throws Error(kInvalidArgument) if Q7X2_LOG is none of the four words.
void check_log_setting();

}  // namespace q7x2
