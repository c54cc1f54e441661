// Threads that leave every signal to the user's.
#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace q7x2 {

/// `name` has at most 15 characters.
template <typename F>
std::thread quiet_thread(const char* name, F&& body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::forward<F>(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace q7x2
