// A process that cannot start threads while this exists.
#pragma once

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>

namespace q7x2::test {

/// New threads want a stack that the limit of the address space forbids. Everything else has enough
/// memory. For forked ranks, whose limits end with them.
class ScarceThreads {
 public:
  ScarceThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t wanting = before_;
    pthread_attr_setstacksize(&wanting, kStack);
    pthread_setattr_default_np(&wanting);
    ::getrlimit(RLIMIT_AS, &limit_);
    rlimit scarce = limit_;
    scarce.rlim_cur = used() + kStack / 2;
    ::setrlimit(RLIMIT_AS, &scarce);
  }
  ~ScarceThreads() {
    ::setrlimit(RLIMIT_AS, &limit_);
    pthread_setattr_default_np(&before_);
  }
  ScarceThreads(const ScarceThreads&) = delete;
  ScarceThreads& operator=(const ScarceThreads&) = delete;

 private:
  static constexpr size_t kStack = size_t{1} << 30;

  static size_t used() {
    unsigned long pages = 0;
    std::FILE* const file = std::fopen("/proc/self/statm", "r");
    if (file == nullptr || std::fscanf(file, "%lu", &pages) != 1) std::perror("/proc/self/statm");
    if (file != nullptr) std::fclose(file);
    return pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  }

  pthread_attr_t before_;
  rlimit limit_{};
};

}  // namespace q7x2::test
