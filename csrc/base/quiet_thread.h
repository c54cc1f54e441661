// Threads that receive no signals, so that the user's threads get all of them.
#pragma once

#include <pthread.h>

#include <csignal>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace q7x2 {

/// Blocks all signals in this thread, and in threads that it starts, until it is destroyed.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

/// Starts a thread. `name` has at most 15 characters. Throws Error(kTransport) if the operating
/// system refuses.
template <typename F>
std::thread quiet_thread(const char* name, F&& body) {
  const SignalsBlocked blocked;
  try {
    std::thread thread(std::forward<F>(body));
    pthread_setname_np(thread.native_handle(), name);
    return thread;
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kTransport,
                std::string("the thread ") + name + " could not be started (" +
                    error.code().message() +
                    "): raise the limit of processes and threads (`ulimit -u`, or the container's "
                    "pids limit)");
  }
}

}  // namespace q7x2
