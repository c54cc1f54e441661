#include "base/process.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "base/error.h"

namespace q7x2 {
namespace {

// What `body` returns in a forked child.
template <typename Body>
int in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(body());
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ForkGuard, IsElsewhereInAForkedChild) {
  const ForkGuard home;
  EXPECT_FALSE(home.is_elsewhere());
  EXPECT_NO_THROW(home.require("it"));
  EXPECT_EQ(in_child([&home] {
              try {
                home.require("it");
              } catch (const Error& error) {
                const ForkGuard own;
                return home.is_elsewhere() && !own.is_elsewhere() &&
                               error.code() == ErrorCode::kAborted
                           ? 7
                           : 1;
              }
              return 2;
            }),
            7);
  EXPECT_FALSE(home.is_elsewhere());
}

TEST(Ending, OnlyTheThreadThatEndsTheProcessGoesOn) {
  EXPECT_EQ(in_child([] {
              std::atomic<int> came_back{0};
              const auto call = [&came_back] {
                const StayIfEnding stay;
                ++came_back;
              };
              std::thread before(call);
              before.join();
              begin_ending();
              std::thread after([&] {
                call();
                came_back = 100;
              });
              after.detach();
              block_at_exit();
              std::this_thread::sleep_for(std::chrono::milliseconds(100));
              return is_ending() && came_back <= 2 ? 7 : 1;
            }),
            7);
  EXPECT_FALSE(is_ending());
}

}  // namespace
}  // namespace q7x2
