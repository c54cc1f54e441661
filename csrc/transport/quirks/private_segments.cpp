#include "transport/quirks/private_segments.h"

#include <fcntl.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/error.h"

namespace q7x2 {
namespace {

constexpr mode_t kPrivate = S_IRUSR | S_IWUSR;
constexpr const char* kUcxFile = "/dev/shm/ucx_shm";

[[noreturn]] void cannot(const std::string& what) {
  throw Error(ErrorCode::kTransport,
              "the mode of " + what + " cannot be set to 0600: " + std::strerror(errno));
}

void restrict_segment(int number) {
  shmid_ds segment{};
  if (::shmctl(number, IPC_STAT, &segment) != 0) {
    return;  // it belongs to another user, or is gone
  }
  const bool is_own = segment.shm_cpid == ::getpid() && segment.shm_perm.__key == IPC_PRIVATE;
  if (!is_own || (segment.shm_perm.mode & 0777) == kPrivate) {
    return;
  }
  segment.shm_perm.mode = kPrivate;
  if (::shmctl(number, IPC_SET, &segment) != 0) {
    cannot("a segment of shared memory");
  }
}

// UCX keeps its files open, because peers open them through /proc/PID/fd.
void restrict_files() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (error || !target.starts_with(kUcxFile)) continue;
    const int fd = std::atoi(entry.path().filename().c_str());
    struct stat status {};
    if (::fstat(fd, &status) == 0 && (status.st_mode & 0777) != kPrivate &&
        ::fchmod(fd, kPrivate) != 0) {
      cannot(target);
    }
  }
}

}  // namespace

// The kernel's list of all segments is short. /proc/self/maps, which names the attached segments,
// has a thousand lines in a process with torch.
std::set<int> created_segments() {
  std::set<int> numbers;
  shm_info summary{};
  const int last = ::shmctl(0, SHM_INFO, reinterpret_cast<shmid_ds*>(&summary));
  if (last < 0) cannot("segments of shared memory");
  for (int index = 0; index <= last; ++index) {
    shmid_ds segment{};
    const int number = ::shmctl(index, SHM_STAT, &segment);  // fails for segments of other users
    if (number >= 0 && segment.shm_cpid == ::getpid()) numbers.insert(number);
  }
  return numbers;
}

PrivateSegments::PrivateSegments() : known_(created_segments()) {}

void PrivateSegments::restrict_newer() const {
  for (const int number : created_segments()) {
    if (!known_.contains(number)) {
      restrict_segment(number);
    }
  }
  restrict_files();
}

}  // namespace q7x2
