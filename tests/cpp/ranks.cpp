#include "ranks.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

#include <gtest/gtest.h>
#include <ucs/config/global_opts.h>

#include "executor/probe/survey.h"
#include "slowdown.h"
#include "transport/bootstrap/published.h"

namespace q7x2::test {
namespace {

constexpr int kMaxRanks = 8;
constexpr size_t kMaxNotes = 512;
constexpr size_t kMaxKey = 64;
constexpr size_t kMaxBytes = 4096;

struct Note {
  std::array<char, kMaxKey> key;
  uint32_t length;
  std::array<char, kMaxBytes> bytes;
};

/// Written by one rank, read by all.
struct Page {
  std::atomic<pid_t> pid;
  std::atomic<uint32_t> barriers;
  std::atomic<uint32_t> num_notes;
  std::array<char, 256> at;
  std::array<Note, kMaxNotes> notes;
};

}  // namespace

struct Board {
  std::array<Page, kMaxRanks> pages;

  Page& page(int rank) { return pages[static_cast<size_t>(rank)]; }
};

namespace {

void copy_text(std::string_view text, std::span<char> to) {
  const size_t length = std::min(text.size(), to.size() - 1);
  std::memcpy(to.data(), text.data(), length);
  to[length] = '\0';
}

const Note* find_note(const Page& page, const std::string& key) {
  const uint32_t count = page.num_notes.load(std::memory_order_acquire);
  const auto end = page.notes.begin() + count;
  const auto found =
      std::find_if(page.notes.begin(), end, [&](const Note& n) { return key == n.key.data(); });
  return found == end ? nullptr : &*found;
}

/// Sends a rank's failures to the parent as they come, so that those before a hang are known.
class FailuresToPipe : public ::testing::EmptyTestEventListener {
 public:
  explicit FailuresToPipe(int fd) : fd_(fd) {}

  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::ostringstream text;
    text << (result.file_name() == nullptr ? "" : result.file_name()) << ':' << result.line_number()
         << ": " << result.message() << '\n';
    const std::string bytes = text.str();
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = ::write(fd_, bytes.data() + sent, bytes.size() - sent);
      if (n <= 0) return;
      sent += static_cast<size_t>(n);
    }
  }

 private:
  const int fd_;
};

[[noreturn]] void run_child(Rank& rank, const std::function<void(Rank&)>& body, int fd) {
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new FailuresToPipe(fd));
  // As the Python package has it: UCX speaks through errors.
  if (std::getenv("UCX_LOG_LEVEL") == nullptr) ucs_global_opts_set_value("LOG_LEVEL", "fatal");
  try {
    body(rank);
    rank.drop_runtime();
  } catch (const Error& error) {
    ADD_FAILURE() << "Error(" << to_string(error.code()) << ", rank " << error.rank()
                  << "): " << error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "exception: " << error.what();
  }
  // Neither gtest's nor the parent's own ends of life belong to this process.
  ::_exit(::testing::Test::HasFailure() ? 1 : 0);
}

struct Child {
  pid_t pid = -1;
  int fd = -1;
  bool overdue = false;
  std::string output;
};

std::string describe_end(int status) {
  return WIFSIGNALED(status) ? std::string("killed by ") + ::strsignal(WTERMSIG(status))
                             : "exit status " + std::to_string(WEXITSTATUS(status));
}

/// Reads what the children say until all have ended or `give_up` has passed.
void collect(std::vector<Child>& children, TimePoint give_up) {
  const auto open = [&] {
    return std::any_of(children.begin(), children.end(), [](const Child& c) { return c.fd >= 0; });
  };
  while (open()) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(give_up - Clock::now()).count();
    if (left <= 0) break;
    std::vector<pollfd> fds;
    for (const Child& child : children) fds.push_back({child.fd, POLLIN, 0});
    ::poll(fds.data(), fds.size(), static_cast<int>(left));
    for (size_t i = 0; i < children.size(); ++i) {
      if (fds[i].revents == 0) continue;
      std::array<char, 4096> buffer;
      const ssize_t n = ::read(children[i].fd, buffer.data(), buffer.size());
      if (n > 0) {
        children[i].output.append(buffer.data(), static_cast<size_t>(n));
      } else {
        ::close(std::exchange(children[i].fd, -1));
      }
    }
  }
  for (Child& child : children) {
    child.overdue = child.fd >= 0;
    if (child.overdue) {
      ::kill(child.pid, SIGKILL);
      ::close(std::exchange(child.fd, -1));
    }
  }
}

/// UCX loads its modules when it is first used.
bool has_used_ucx() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("libuct_cma") != std::string::npos) return true;
  }
  return false;
}

}  // namespace

Rank::Rank(Board& board, int own_rank, int size, std::chrono::seconds deadline)
    : rank(own_rank),
      world_size(size),
      board_(board),
      // Earlier than the parent, so that the rank itself can say what it waited for.
      give_up_(Clock::now() + deadline * 9 / 10) {}

Runtime& Rank::runtime() {
  if (!runtime_) runtime_ = Runtime::instance();
  return *runtime_;
}

std::shared_ptr<Group> Rank::group(const std::string& name, const std::vector<int>& members,
                                   bool eager) {
  std::vector<int> ranks = members;
  if (ranks.empty()) {
    ranks.resize(static_cast<size_t>(world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  const auto me = std::find(ranks.begin(), ranks.end(), rank);
  if (me == ranks.end()) throw std::logic_error("this rank is not in the group " + name);
  const JobSecret& secret = runtime().secret();
  const auto seat =
      Seat{static_cast<int>(me - ranks.begin()), static_cast<int>(ranks.size()), name};
  const auto all_have = [&](const std::string& key, const std::string& mine) {
    put(key, mine);
    std::vector<std::string> all;
    for (const int member : ranks) all.push_back(get(member, key));
    return all;
  };
  ScriptedBootstrap bootstrap(*this, [&](const std::string& what, const std::string& mine) {
    return read_all_published(secret, what, seat,
                              all_have(what + " " + name, publish(secret, what, seat, mine)));
  });
  bootstrap.set_prepared([&] { all_have("prepared " + name, ""); });
  return make_group(runtime(), seat.rank, seat.world_size, name, bootstrap,
                    {.eager = eager, .announcement = announcement_of_process()});
}

void Rank::wait_for(const std::function<int()>& missing, const std::function<void()>& check) {
  wait_until("the memory of other ranks", [&] {
    check();
    return missing() < 0;
  });
}

void Rank::put(const std::string& key, const std::string& bytes) {
  Page& page = board_.page(rank);
  const uint32_t index = page.num_notes.load(std::memory_order_relaxed);
  if (index >= kMaxNotes || key.size() >= kMaxKey || bytes.size() > kMaxBytes) {
    throw std::logic_error("the board has no room for '" + key + "'");
  }
  Note& note = page.notes[index];
  copy_text(key, note.key);
  std::memcpy(note.bytes.data(), bytes.data(), bytes.size());
  note.length = static_cast<uint32_t>(bytes.size());
  page.num_notes.store(index + 1, std::memory_order_release);
}

std::string Rank::get(int from, const std::string& key) {
  const Note* note = nullptr;
  wait_until("'" + key + "' of rank " + std::to_string(from),
             [&] { return (note = find_note(board_.page(from), key)) != nullptr; });
  return {note->bytes.data(), note->length};
}

void Rank::barrier() {
  board_.page(rank).barriers = ++barriers_;
  for (int other = 0; other < world_size; ++other) {
    wait_until("rank " + std::to_string(other) + " at barrier " + std::to_string(barriers_),
               [&] { return board_.page(other).barriers >= barriers_; });
  }
}

pid_t Rank::pid_of(int other) const {
  return board_.page(other).pid;
}

void Rank::at(const std::string& what) {
  copy_text(what, board_.page(rank).at);
}

void Rank::wait_until(const std::string& what, const std::function<bool()>& condition) {
  while (!condition()) {
    if (Clock::now() >= give_up_) throw std::runtime_error("waited in vain for " + what);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void run_ranks(int world_size, const std::function<void(Rank&)>& body, const RunOptions& options) {
  ASSERT_LE(world_size, kMaxRanks);
  ASSERT_FALSE(has_used_ucx())
      << "this process has used UCX, and so no child of it can: a test that "
         "uses UCX does so in run_ranks(1, ...)";
  void* memory =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED) << std::strerror(errno);
  Board& board = *static_cast<Board*>(memory);  // zeros are its beginning

  const std::chrono::seconds deadline = options.deadline * kSlowdown;
  const TimePoint give_up = Clock::now() + deadline;
  const pid_t parent = ::getpid();
  std::fflush(nullptr);  // or each rank has a copy of what is buffered
  std::vector<Child> children(static_cast<size_t>(world_size));
  for (int r = 0; r < world_size; ++r) {
    Child& child = children[static_cast<size_t>(r)];
    std::array<int, 2> ends;
    ASSERT_EQ(::pipe(ends.data()), 0) << std::strerror(errno);
    child.pid = ::fork();
    if (child.pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      ::close(ends[0]);
      board.page(r).pid = ::getpid();
      Rank rank(board, r, world_size, deadline);
      run_child(rank, body, ends[1]);
    }
    ::close(ends[1]);
    child.fd = ends[0];
    ASSERT_GT(child.pid, 0) << std::strerror(errno);
    board.page(r).pid = child.pid;
  }
  collect(children, give_up);

  for (int r = 0; r < world_size; ++r) {
    const Child& child = children[static_cast<size_t>(r)];
    int status = 0;
    ASSERT_EQ(::waitpid(child.pid, &status, 0), child.pid) << std::strerror(errno);
    const bool to_be_killed = options.killed.contains(r);
    const bool as_expected =
        to_be_killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0;
    if (child.overdue) {
      ADD_FAILURE() << "rank " << r << " had not ended after " << deadline.count()
                    << " s; last at: " << board.page(r).at.data() << '\n'
                    << child.output;
    } else if (!as_expected || !child.output.empty()) {
      ADD_FAILURE() << "rank " << r << " (" << describe_end(status)
                    << "); last at: " << board.page(r).at.data() << '\n'
                    << child.output;
    }
  }
  ::munmap(memory, sizeof(Board));
}

}  // namespace q7x2::test
