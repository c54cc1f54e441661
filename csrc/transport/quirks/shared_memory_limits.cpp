#include "transport/quirks/shared_memory_limits.h"

#include <fcntl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/parse_number.h"

namespace q7x2 {
namespace {

// Bytes that a UCX transport allocates per process: a queue, and descriptors of received messages.
constexpr size_t kQueueBytes = size_t{12} << 10;
constexpr size_t kDescriptorBytes = 806912;
constexpr size_t kRankBytes = kQueueBytes + kDescriptorBytes;
// Bytes per rank that messages without a receive are not expected to exceed.
constexpr size_t kAmple = size_t{32} << 20;
// Bytes of /dev/shm that q7x2's own segments leave free.
constexpr size_t kShmReserve = size_t{8} << 20;

// Transports that cannot carry a message to another process by themselves.
const std::set<std::string> kHelpers{"self", "loopback", "cma", "knem", "xpmem"};

std::string mebibytes(size_t bytes) {
  return std::to_string(bytes >> 20) + " MiB";
}

/// The same for a needed amount: rounded up.
std::string mebibytes_needed(size_t bytes) {
  return mebibytes(bytes + (size_t{1} << 20) - 1);
}

/// Empty if it cannot be read.
std::string kernel_value(const std::string& name) {
  std::string value;
  std::ifstream("/proc/sys/kernel/" + name) >> value;
  return value;
}

std::string kernel_setting(const std::string& name) {
  const std::string value = kernel_value(name);
  return "kernel." + name + "=" + (value.empty() ? "unknown" : value);
}

/// 0 if it is not a number.
uint64_t kernel_number(const std::string& name) {
  return parse_number<uint64_t>(kernel_value(name)).value_or(0);
}

/// Why no file can be made in /dev/shm; nothing if it can.
std::optional<std::string> shm_refusal() {
  const std::string name = "/q7x2-trial-" + std::to_string(::getpid());
  const int fd = ::shm_open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) {
    return std::strerror(errno);
  }
  ::close(fd);
  ::shm_unlink(name.c_str());
  return std::nullopt;
}

/// The transport that an item of UCX_TLS names: "\\rc" and "ud:aux" are "rc" and "ud".
std::string transport_of(const std::string& item) {
  const size_t begin = std::min(item.find_first_not_of('\\'), item.size());
  return item.substr(begin, item.find(':', begin) - begin);
}

/// UCX_TLS: a list of transports, or all others ("^posix,sysv", "all").
struct Allowed {
  std::set<std::string> transports;
  bool all_others = false;
};

Allowed parse(const std::string& tls) {
  Allowed allowed;
  allowed.all_others = tls.starts_with('^');
  std::istringstream in(tls.substr(allowed.all_others ? 1 : 0));
  for (std::string item; std::getline(in, item, ',');) {
    const std::string name = transport_of(item);
    if (name == "all") {
      return {.transports = {}, .all_others = true};
    }
    if (name == "mm" || name == "sm" || name == "shm") {
      allowed.transports.insert({"posix", "sysv", "xpmem"});
      if (name != "mm") {
        allowed.transports.insert({"knem", "cma"});
      }
    } else {
      allowed.transports.insert(item);
    }
  }
  return allowed;
}

bool contains(const std::vector<std::string>& transports, const std::string& name) {
  return std::find(transports.begin(), transports.end(), name) != transports.end();
}

std::string join(const std::set<std::string>& items) {
  std::string list;
  for (const std::string& item : items) {
    list += (list.empty() ? "" : ",") + item;
  }
  return list;
}

}  // namespace

std::optional<std::string> posix_obstacle(int local_ranks) {
  const std::string help = "; start the container with --shm-size=1g, or enlarge /dev/shm";
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) != 0) {
    return std::string("/dev/shm cannot be used (") + std::strerror(errno) + ")" + help;
  }
  if (const auto refusal = shm_refusal()) {
    return "/dev/shm cannot be written to (" + *refusal + ")" + help;
  }
  if (shm.f_blocks == 0) {
    return std::nullopt;  // a tmpfs without a limit
  }
  const size_t free = shm.f_bavail * shm.f_frsize;
  const size_t size = shm.f_blocks * shm.f_frsize;
  const size_t all = kRankBytes * static_cast<size_t>(std::max(local_ranks, 1));
  // All ranks see the same size, so they make the same decision.
  if (free < kRankBytes || size < all) {
    return "/dev/shm has " + mebibytes(free) + " free, and UCX needs " +
           (size < all ? mebibytes_needed(all) + " for the " + std::to_string(local_ranks) +
                             " ranks of this host"
                       : mebibytes_needed(kRankBytes) + " for each rank") +
           help;
  }
  return std::nullopt;
}

std::optional<std::string> sysv_obstacle() {
  std::array<int, 2> segments{-1, -1};
  constexpr std::array<size_t, 2> kBytes{kQueueBytes, kDescriptorBytes};
  std::optional<std::string> obstacle;
  for (size_t i = 0; i < segments.size() && !obstacle; ++i) {
    segments[i] = ::shmget(IPC_PRIVATE, kBytes[i], IPC_CREAT | IPC_EXCL | 0600);
    if (segments[i] < 0) {
      obstacle = "a SysV segment of " + std::to_string(kBytes[i]) + " bytes cannot be had (" +
                 std::strerror(errno) + "; the limits are " + kernel_setting("shmmax") + ", " +
                 kernel_setting("shmall") + " pages and " + kernel_setting("shmmni") +
                 " segments); raise them with sysctl";
    }
  }
  for (const int segment : segments) {
    if (segment >= 0) {
      ::shmctl(segment, IPC_RMID, nullptr);
    }
  }
  return obstacle;
}

bool sysv_fits(const std::vector<std::string>& transports, size_t bytes) {
  if (!contains(transports, "sysv")) {
    return false;
  }
  const int segment = ::shmget(IPC_PRIVATE, bytes, IPC_CREAT | IPC_EXCL | 0600);
  if (segment >= 0) {
    ::shmctl(segment, IPC_RMID, nullptr);
  }
  return segment >= 0;
}

bool segments_fit(const std::vector<std::string>& transports, size_t bytes, int ranks) {
  if (sysv_fits(transports, bytes)) {
    return true;
  }
  struct statvfs shm {};
  if (!contains(transports, "posix") || ::statvfs("/dev/shm", &shm) != 0) {
    return false;
  }
  return shm.f_blocks == 0 ||
         shm.f_bavail * shm.f_frsize >= bytes * static_cast<size_t>(ranks) + kShmReserve;
}

bool is_scarce(const std::vector<std::string>& transports, int local_ranks) {
  struct statvfs shm {};
  if (contains(transports, "posix") && (::statvfs("/dev/shm", &shm) != 0 || shm.f_blocks != 0)) {
    return true;
  }
  const auto ranks = static_cast<uint64_t>(std::max(local_ranks, 1));
  const uint64_t pages = kAmple / static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return contains(transports, "sysv") &&
         (kernel_number("shmall") < ranks * pages ||
          kernel_number("shmmni") < ranks * (kAmple / kDescriptorBytes));
}

int local_ranks() {
  const char* const text = std::getenv("LOCAL_WORLD_SIZE");
  return text == nullptr ? 1 : std::max(parse_number<int>(text).value_or(1), 1);
}

bool allows_transport(const std::string& tls, const std::string& transport) {
  const Allowed allowed = parse(tls);
  const bool named =
      std::any_of(allowed.transports.begin(), allowed.transports.end(),
                  [&](const std::string& item) { return transport_of(item) == transport; });
  return named != allowed.all_others;
}

std::optional<std::string> without_transports(const std::string& tls,
                                              const std::set<std::string>& without) {
  Allowed allowed = parse(tls);
  if (allowed.all_others) {
    allowed.transports.insert(without.begin(), without.end());
    return "^" + join(allowed.transports);
  }
  bool carries = false;
  std::erase_if(allowed.transports, [&](const std::string& item) {
    const bool goes = without.contains(transport_of(item));
    carries |= !goes && !kHelpers.contains(transport_of(item));
    return goes;
  });
  return carries ? std::optional(join(allowed.transports)) : std::nullopt;
}

}  // namespace q7x2
