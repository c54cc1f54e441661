#include "ledger/dump_writer.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/owned_fd.h"
#include "base/private_file.h"
#include "base/quiet_thread.h"
#include "ledger/dump_signal.h"
#include "ledger/flight_json.h"

namespace q7x2 {
namespace {

// A file system that does not answer must not keep the process from ending.
constexpr std::chrono::seconds kPatience{5};

std::string file_name(const FlightSnapshot& snapshot, int number) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const int64_t rank = snapshot.job_rank();
  return "q7x2-rank" + (rank < 0 ? std::string("none") : std::to_string(rank)) + "-" + host.data() +
         "-" + std::to_string(::getpid()) + "-" + std::to_string(number) + ".json";
}

/// Returns true if it was readable; afterwards it is not.
bool take_event(int fd) {
  uint64_t count = 0;
  return ::read(fd, &count, sizeof(count)) == sizeof(count);
}

}  // namespace

void write_dump(const FlightSnapshot& snapshot, const std::string& path) {
  const std::string text = to_json(snapshot);
  try {
    replace_private_file(path, text);
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kTransport, "the flight recorder could not be written to " + path +
                                           ": " + error.code().message());
  }
}

/// Shared with the thread, which may outlive the writer if a file system does not answer.
struct DumpWriter::State {
  std::string directory;
  TakeSnapshot take;
  OwnedFd wake;
  int signal = -1;

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::string reason;  // why a dump is requested; empty: none is requested
  bool is_writing = false;
  bool is_stopping = false;
  int files = 0;

  void write(const std::string& why) {
    const FlightSnapshot snapshot = take(why);
    const std::string path = directory + "/" + file_name(snapshot, ++files);
    write_dump(snapshot, path);
    log(Level::kWarn, "flight recorder: " + path + " was written because " + why);
  }
};

DumpWriter::DumpWriter(std::string directory, TakeSnapshot take)
    : state_(std::make_shared<State>()) {
  state_->directory = std::move(directory);
  state_->take = std::move(take);
  state_->wake = OwnedFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (state_->wake < 0) {
    throw Error(ErrorCode::kTransport, std::string("eventfd: ") + std::strerror(errno));
  }
  state_->signal = dump_signal_fd();
  thread_ = quiet_thread("q7x2-dump", [state = state_] { run(*state); });
}

DumpWriter::~DumpWriter() {
  bool is_idle = false;
  {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->is_stopping = true;
    ::eventfd_write(state_->wake, 1);
    is_idle = state_->changed.wait_for(
        lock, kPatience, [this] { return state_->reason.empty() && !state_->is_writing; });
    state_->reason.clear();
  }
  if (is_idle) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void DumpWriter::request(const std::string& reason) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->reason += (state_->reason.empty() ? "" : "; ") + reason;
  ::eventfd_write(state_->wake, 1);
}

bool DumpWriter::is_busy() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->is_writing || !state_->reason.empty();
}

void DumpWriter::run(State& state) {
  std::unique_lock<std::mutex> lock(state.mutex);
  while (!state.reason.empty() || !state.is_stopping) {
    if (state.reason.empty()) {
      lock.unlock();
      std::array<pollfd, 2> events{{{state.wake, POLLIN, 0}, {state.signal, POLLIN, 0}}};
      ::poll(events.data(), events.size(), -1);
      take_event(state.wake);
      const bool is_signalled = take_event(state.signal);
      lock.lock();
      if (is_signalled && !state.is_stopping) {
        state.reason += std::string(state.reason.empty() ? "" : "; ") + "of the signal SIGUSR2";
      }
      continue;
    }
    const std::string why = std::exchange(state.reason, {});
    state.is_writing = true;
    lock.unlock();
    try {
      state.write(why);
    } catch (const std::exception& error) {
      log(Level::kWarn, error.what());
    }
    lock.lock();
    state.is_writing = false;
    state.changed.notify_all();
  }
}

}  // namespace q7x2
