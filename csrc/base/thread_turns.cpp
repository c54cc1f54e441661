#include "base/thread_turns.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <string_view>

#include "base/owned_fd.h"

namespace q7x2 {
namespace {

/// Parses the number at the start of `text`, and removes it.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  if (text.starts_with(' ')) text.remove_prefix(1);
  return number;
}

}  // namespace

// The file has three numbers: "333410 61182 3". The last one is the number of turns.
std::optional<ThreadTurns> turns_of_this_thread() {
  const OwnedFd file(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
  std::array<char, 96> bytes;
  const ssize_t length = file < 0 ? -1 : read(file, bytes.data(), bytes.size());
  if (length <= 0) return std::nullopt;
  std::string_view text(bytes.data(), static_cast<size_t>(length));
  const std::optional<int64_t> ran = take_number(text);
  const std::optional<int64_t> waited = take_number(text);
  if (!ran || !waited) return std::nullopt;
  return ThreadTurns{static_cast<int>(syscall(SYS_gettid)), *ran, *waited};
}

}  // namespace q7x2
