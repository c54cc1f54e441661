#include "base/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "base/owned_fd.h"

namespace q7x2 {
namespace {

constexpr mode_t kFolderMode = S_IRWXU;
constexpr mode_t kFileMode = S_IRUSR | S_IWUSR;

[[noreturn]] void fail(const std::filesystem::path& path) {
  throw std::filesystem::filesystem_error("cannot be written", path,
                                          std::error_code(errno, std::generic_category()));
}

void write_all(int fd, std::string_view text, const std::filesystem::path& path) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path);
    text.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace

void make_private_folder(const std::filesystem::path& folder) {
  if (folder.empty() || std::filesystem::is_directory(folder)) return;
  make_private_folder(folder.parent_path());
  if (::mkdir(folder.c_str(), kFolderMode) != 0 &&
      (errno != EEXIST || !std::filesystem::is_directory(folder))) {
    fail(folder);
  }
}

void replace_private_file(const std::filesystem::path& file, std::string_view text) {
  const std::filesystem::path draft = file.string() + ".part" + std::to_string(::getpid());
  ::unlink(draft.c_str());  // left by an earlier process with this number, or someone's link
  try {
    const OwnedFd fd(
        ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kFileMode));
    if (fd < 0) fail(file);
    write_all(fd, text, file);
    if (::rename(draft.c_str(), file.c_str()) != 0) fail(file);
  } catch (...) {
    ::unlink(draft.c_str());
    throw;
  }
}

}  // namespace q7x2
