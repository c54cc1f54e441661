// Copies between processes: whole, and with typed errors where there is no process or no memory.
#include "base/process_memory.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"

namespace q7x2 {
namespace {

uint64_t address_of(const void* memory) {
  return reinterpret_cast<uint64_t>(memory);
}

ErrorCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::kInternal;
}

/// A copy of this process that waits to be killed.
class Child {
 public:
  Child() : pid_(fork()) {
    if (pid_ == 0) {
      while (true) pause();
    }
  }
  ~Child() { end(); }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

TEST(ProcessMemory, AChildIsReadAndWritten) {
  std::vector<int> numbers(300'000);
  std::iota(numbers.begin(), numbers.end(), 0);
  const Child child;
  const std::vector<int> before = numbers;
  const size_t bytes = numbers.size() * sizeof(int);
  std::vector<int> other(numbers.size(), 7);
  write_process(child.pid(), address_of(numbers.data()), other.data(), bytes);
  std::vector<int> found(numbers.size());
  read_process(child.pid(), address_of(numbers.data()), found.data(), bytes);
  EXPECT_EQ(found, other);
  EXPECT_EQ(numbers, before);  // the child has its own
}

TEST(ProcessMemory, ErrorsSayWhatIsMissing) {
  int number = 0;
  Child child;
  const pid_t pid = child.pid();
  EXPECT_EQ(code_of([&] { write_process(pid, 64, &number, sizeof(number)); }),
            ErrorCode::kTransport);
  child.end();
  EXPECT_EQ(code_of([&] { read_process(pid, address_of(&number), &number, sizeof(number)); }),
            ErrorCode::kPeerFailed);
}

}  // namespace
}  // namespace q7x2
