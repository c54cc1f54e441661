// A process that can open no more files.
#pragma once

#include <sys/resource.h>

#include <stdexcept>

namespace q7x2::test {

/// While it exists, this process can open no more files. Open files stay open.
class NoMoreFiles {
 public:
  NoMoreFiles() {
    if (::getrlimit(RLIMIT_NOFILE, &before_) != 0) throw std::runtime_error("getrlimit");
    const rlimit none{0, before_.rlim_max};
    if (::setrlimit(RLIMIT_NOFILE, &none) != 0) throw std::runtime_error("setrlimit");
  }
  ~NoMoreFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoMoreFiles(const NoMoreFiles&) = delete;
  NoMoreFiles& operator=(const NoMoreFiles&) = delete;

 private:
  rlimit before_{};
};

}  // namespace q7x2::test
