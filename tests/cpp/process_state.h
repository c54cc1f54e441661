// The state of a process, as reported by the kernel.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

namespace q7x2::test {

/// The kernel's letter for the state: R runs, S sleeps, T is stopped.
inline char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t end = line.rfind(')');
  return end + 2 < line.size() ? line[end + 2] : '?';
}

/// Waits until the process is in this state.
inline void await_state(pid_t pid, char state) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (state_of(pid) != state) {
    if (std::chrono::steady_clock::now() > give_up) {
      throw std::runtime_error("process " + std::to_string(pid) + " does not get into state " +
                               std::string(1, state));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace q7x2::test
