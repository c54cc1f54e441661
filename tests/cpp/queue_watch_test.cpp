// A process that is killed while it writes to another one of its host.
#include "transport/peer/queue_watch.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "faulting_write.h"
#include "ranks.h"
#include "scarce_files.h"
#include "slowdown.h"

namespace q7x2 {
namespace {

using test::Rank;
using test::run_ranks;
using Clock = std::chrono::steady_clock;

constexpr unsigned kId = 9;
constexpr int kRounds = 200;

/// A process that sends a message, and then one that lies in memory which it cannot read: it is
/// killed in the middle of its second write.
class Writer {
 public:
  Writer() {
    EXPECT_EQ(pipe(pipe_), 0);
    pid_ = fork();
    if (pid_ == 0) {
      try {
        write_to(read_address());
      } catch (...) {
      }
      _exit(1);
    }
    close(pipe_[0]);
  }
  /// It writes to the worker with this address. Returns when it is dead: by which signal.
  int run(const std::string& address) {
    EXPECT_EQ(write(pipe_[1], address.data(), address.size()),
              static_cast<ssize_t>(address.size()));
    close(pipe_[1]);
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }

 private:
  std::string read_address() {
    close(pipe_[1]);
    std::string address;
    char bytes[512];
    for (ssize_t n = 0; (n = read(pipe_[0], bytes, sizeof(bytes))) > 0;) {
      address.append(bytes, static_cast<size_t>(n));
    }
    return address;
  }

  static void write_to(const std::string& address) {
    signal(SIGSEGV, SIG_DFL);
    test::write_and_fault(address, kId, test::new_page());
  }

  int pipe_[2] = {-1, -1};
  pid_t pid_ = -1;
};

ucs_status_t count(void* arg, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*) {
  ++*static_cast<int*>(arg);
  return UCS_OK;
}

/// As a driver would. Returns whether the queue is blocked.
bool find_out(Reactor& reactor, QueueWatch& watch) {
  Locked locked(reactor.lock());
  watch.process_died(locked, Clock::now(), "pid 7 on host a");
  bool is_blocked = false;
  while (watch.due(locked) != QueueWatch::TimePoint::max()) {
    reactor.progress(locked);
    is_blocked |= watch.look(locked, Clock::now());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return is_blocked;
}

TEST(QueueWatch, AQueueThatWorksIsFoundToWork) {
  run_ranks(1, [](Rank&) {
    Reactor reactor({});
    QueueWatch watch(reactor);
    EXPECT_FALSE(find_out(reactor, watch));
    EXPECT_FALSE(find_out(reactor, watch)) << "after another death";
    EXPECT_FALSE(watch.is_blocked());
  });
}

TEST(QueueWatch, ADeathWhileAMessageIsOnItsWayNeedsAnotherMessage) {
  run_ranks(1, [](Rank&) {
    Reactor reactor({});
    QueueWatch watch(reactor);
    Locked locked(reactor.lock());
    const auto never = QueueWatch::TimePoint::max();
    const auto begin = Clock::now();
    watch.process_died(locked, begin, "pid 7 on host a");
    watch.look(locked, begin + QueueWatch::kPause);  // sends
    const auto death = begin + QueueWatch::kPause + std::chrono::milliseconds(1);
    watch.process_died(locked, death, "pid 8 on host a");
    const auto second = death + QueueWatch::kPause;
    for (int i = 0; i < kRounds && watch.due(locked) < second; ++i) {
      reactor.progress(locked);
      watch.look(locked, watch.due(locked));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(watch.due(locked), second);
    watch.look(locked, second);
    EXPECT_NE(watch.due(locked), never) << "the second message is on its way";
  });
}

// UCX would end the process.
TEST(QueueWatch, NothingIsTriedWithoutFiles) {
  if (test::kSlowdown > 1) GTEST_SKIP() << "a sanitizer looks at an exception through a pipe";
  run_ranks(1, [](Rank&) {
    Reactor reactor({});
    QueueWatch watch(reactor);
    const test::NoMoreFiles limited;
    EXPECT_FALSE(find_out(reactor, watch));
    EXPECT_FALSE(watch.is_blocked());
  });
}

TEST(QueueWatch, AWriterThatWasKilledBlocksIt) {
  run_ranks(1, [](Rank&) {
    Writer writer;  // forks before UCX has threads and sockets
    Reactor reactor({});
    QueueWatch watch(reactor);
    int arrived = 0;
    reactor.on_message(kId, count, &arrived);
    ASSERT_EQ(writer.run(reactor.worker().address()), SIGSEGV);
    EXPECT_TRUE(find_out(reactor, watch));
    EXPECT_TRUE(watch.is_blocked());
    EXPECT_EQ(arrived, 1) << "what came before it";
    EXPECT_NE(std::string(watch.error().what()).find("pid 7 on host a was killed"),
              std::string::npos);
    EXPECT_FALSE(find_out(reactor, watch)) << "it is said once";
  });
}

}  // namespace
}  // namespace q7x2
