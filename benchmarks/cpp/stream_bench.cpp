// What a StreamLane needs for messages between two hosts, beside what the line between them allows.
//
//   ./dev lab wan --hosts 2x1 --rtt 100ms --rate 200mbit build/dev/q7x2_stream_bench RATE RTT
//   [REPEATS]
//
// RATE in Mbit/s and RTT in ms are those of the line. Each of the two processes has RANK and
// MASTER_ADDR. Rank 0 prints, in ms:
//
//   one way    from the send to the receipt: rank 1 answers, and half of an RTT is subtracted
//   exchange   both send and receive; the time until a rank has both
//   two        two exchanges of half the size, the second one after the first, as all-reduce does
//   silence    the same after two seconds in which nothing is sent
//
// beside the least time that is possible, and how often chunks were sent again.
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/ip_address.h"
#include "transport/stream/stream_lane.h"

namespace {

using q7x2::StreamClock;
using q7x2::StreamTime;
using Seconds = std::chrono::duration<double>;

constexpr uint16_t kPort = 29777;
constexpr uint64_t kAny = ~uint64_t{0};

q7x2::Identity identity(int rank) {
  q7x2::Identity it{static_cast<uint64_t>(rank) + 1, {}};
  it.key.fill(static_cast<std::byte>(rank + 1));
  return it;
}

class Bench {
 public:
  Bench(int rank, const std::string& master, double rate, double rtt, int repeats)
      : rank_(rank),
        line_(rate),
        rtt_(rtt),
        repeats_(repeats),
        lane_(q7x2::StreamOptions::of_environment(), identity(rank),
              q7x2::JobSecret("a secret for a benchmark"),
              [this](void* request, q7x2::StreamStatus status, size_t, uint64_t) {
                if (status != q7x2::StreamStatus::kOk) std::_Exit(3);
                done_.insert(request);
              }) {
    ::setenv("Q7X2_PORT_RANGE", "29777-29777", 1);
    lane_.listen({q7x2::IpAddress::v4(0)});
    q7x2::StreamTarget target{identity(1 - rank), 1, {}, rank == 1};
    if (rank == 1) target.addresses = {{q7x2::resolve(master).at(0), kPort}};
    path_ = &lane_.open(target);
  }

  void run() {
    for (const size_t size : {size_t{4}, size_t{64} << 10, size_t{1} << 20, size_t{8} << 20}) {
      row("one way", size, 1, [&] { one_way(size); });
      row("exchange", size, 1, [&] { exchange(size); });
      row("two", size, 2, [&] {
        exchange(size / 2);
        exchange(size / 2);
      });
    }
    const size_t size = size_t{8} << 20;
    row("silence", size, 2, [&] {
      exchange(4);
      rest(std::chrono::seconds(2));
      began_ = StreamClock::now();
      exchange(size / 2);
      exchange(size / 2);
    });
    exchange(4);
    path_->say_bye();
    drive([&] { return path_->is_flushed() && path_->has_left(); });
  }

 private:
  template <typename Work>
  void row(const char* name, size_t size, int phases, const Work& work) {
    std::vector<double> times;
    const auto before = path_->counts();
    exchange(4);
    const std::clock_t cpu = std::clock();
    for (int i = 0; i < repeats_; ++i) {
      began_ = StreamClock::now();
      work();
      Seconds time = StreamClock::now() - began_;
      if (std::string(name) == "one way") time -= Seconds(rtt_ / 2);
      times.push_back(time.count() * 1000);
    }
    const double seconds = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC;
    // A rank that is late by half an RTT finds the next message there already: only the sum of two
    // exchanges says something.
    const double mean = std::accumulate(times.begin(), times.end(), 0.0) / repeats_;
    std::sort(times.begin(), times.end());
    const double least = (static_cast<double>(size) * 8 / line_ + rtt_ / 2 * phases) * 1000;
    const auto after = path_->counts();
    if (rank_ != 0) return;
    std::printf(
        "%-9s %8zu B  least %7.1f  mean %7.1f (%.2f x)  median %7.1f  best %7.1f  worst %7.1f   "
        "again %llu of "
        "%llu MiB, %zu connections, lost %llu, rtt %.0f, rate %.0f, cpu "
        "%.1f ms\n",
        name, size, least, mean, mean / least, times[times.size() / 2], times.front(), times.back(),
        static_cast<unsigned long long>(after.chunks_again - before.chunks_again),
        static_cast<unsigned long long>((after.bytes_acknowledged - before.bytes_acknowledged) >>
                                        20),
        path_->num_connections(), static_cast<unsigned long long>(after.connections_lost),
        Seconds(path_->rtt()).count() * 1000, path_->rate() * 8e-6, seconds * 1000 / repeats_);
    std::fflush(stdout);
  }

  void one_way(size_t size) {
    if (rank_ == 0) {
      const auto sent = send(size);
      wait({receive(4), sent});
    } else {
      wait({receive(size)});
      wait({send(4)});
    }
  }

  void exchange(size_t size) {
    const auto received = receive(size);
    wait({send(size), received});
  }

  void* send(size_t size) {
    if (out_.size() < size) out_.assign(size, std::byte{1});
    void* const request = reinterpret_cast<void*>(++last_);
    lane_.send(*path_, request, size, out_.data(), size);
    return request;
  }

  void* receive(size_t size) {
    if (in_.size() < size) in_.assign(size, std::byte{2});
    void* const request = reinterpret_cast<void*>(++last_);
    lane_.receive(request, size, kAny, in_.data(), size);
    return request;
  }

  void wait(const std::vector<void*>& requests) {
    drive([&] {
      return std::all_of(requests.begin(), requests.end(),
                         [&](void* each) { return done_.contains(each); });
    });
    done_.clear();
  }

  void rest(StreamClock::duration time) {
    const StreamTime end = StreamClock::now() + time;
    drive([&] { return StreamClock::now() >= end; });
  }

  template <typename Condition>
  void drive(const Condition& condition) {
    while (!condition()) {
      if (lane_.progress()) continue;
      if (path_->is_closed()) {
        std::fprintf(stderr, "the path failed: %s\n", path_->failure().c_str());
        std::_Exit(4);
      }
      const auto left = lane_.due() - StreamClock::now();
      const auto nap = std::clamp<StreamClock::duration>(left, StreamClock::duration::zero(),
                                                         std::chrono::milliseconds(50));
      const timespec time{0, std::chrono::nanoseconds(nap).count()};
      pollfd event{lane_.fd(), POLLIN, 0};
      ::ppoll(&event, 1, &time, nullptr);
    }
  }

  const int rank_;
  const double line_;  // bits per second
  const double rtt_;   // seconds
  const int repeats_;
  std::set<void*> done_;
  q7x2::StreamLane lane_;
  q7x2::StreamPath* path_ = nullptr;
  uintptr_t last_ = 0;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
  StreamTime began_;
};

}  // namespace

int main(int argc, char** argv) {
  const char* const rank = std::getenv("RANK");
  const char* const master = std::getenv("MASTER_ADDR");
  if (argc < 3 || rank == nullptr || master == nullptr) {
    std::fprintf(stderr, "usage: RANK=0|1 MASTER_ADDR=... stream_bench MBIT/S MS [REPEATS]\n");
    return 2;
  }
  const int repeats = argc > 3 ? std::atoi(argv[3]) : 10;
  Bench(std::atoi(rank), master, std::atof(argv[1]) * 1e6, std::atof(argv[2]) / 1000, repeats)
      .run();
  return 0;
}
