// 16 MiB reduced, and 16 MiB encoded with int4, as jobs of 1 MiB: seconds of a call, the median of
// several. The environment variable Q7X2_LANES says how many threads help the one that waits.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/codec/codec.h"
#include "kernels/cpu/reduce.h"
#include "transport/bootstrap/wire_up.h"
#include "transport/group/group.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

constexpr size_t kBytes = size_t{16} << 20;
constexpr size_t kJobBytes = size_t{1} << 20;
constexpr size_t kJobs = kBytes / kJobBytes;
constexpr size_t kJobFloats = kJobBytes / sizeof(float);
constexpr int kRounds = 15;

class PieceJob final : public Job {
 public:
  PieceJob(const std::function<void(size_t)>& body, size_t piece) : body_(body), piece_(piece) {}

 private:
  void work() override { body_(piece_); }

  const std::function<void(size_t)>& body_;
  const size_t piece_;
};

class PiecesTask final : public Task {
 public:
  PiecesTask(std::shared_ptr<Group> group, const std::function<void(size_t)>& body)
      : Task(std::move(group), std::chrono::milliseconds(0)) {
    for (size_t piece = 0; piece < kJobs; ++piece) {
      jobs_.push_back(std::make_unique<PieceJob>(body, piece));
    }
  }

  std::string name() const override { return "pieces"; }
  void start(Locked& locked) override {
    for (const auto& job : jobs_) enqueue(locked, *job, kJobBytes);
  }
  void completed(Locked&, uint32_t, size_t, uint64_t) override {}
  void worked(Locked& locked, Job& job) override {
    job.check();
    if (++worked_ == kJobs) finish(locked);
  }

 private:
  std::vector<std::unique_ptr<PieceJob>> jobs_;
  size_t worked_ = 0;
};

double median_seconds(const std::shared_ptr<Group>& group,
                      const std::function<void(size_t)>& body) {
  std::vector<double> seconds;
  for (int round = -2; round < kRounds; ++round) {
    const auto task = std::make_shared<PiecesTask>(group, body);
    const TimePoint before = Clock::now();
    group->runtime().submit(task, /*caller_waits=*/true);
    group->runtime().wait(*task, TimePoint::max());
    if (task->error()) throw Error(*task->error());
    if (round >= 0) seconds.push_back(std::chrono::duration<double>(Clock::now() - before).count());
  }
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

void run() {
  const auto runtime = Runtime::instance();
  const auto echo = [](const std::string&, const std::string& mine, const auto&) {
    return std::vector<std::string>{mine};
  };
  const auto group = make_group(
      *runtime, 0, 1, "bench", echo, [](const auto&, const auto&) {},
      /*eager=*/false);
  std::vector<float> first(kBytes / sizeof(float));
  std::vector<float> second(first.size());
  for (size_t i = 0; i < first.size(); ++i) {
    first[i] = static_cast<float>(i % 1000) - 500.0F;
    second[i] = static_cast<float>(i % 777) - 300.0F;
  }
  std::vector<float> sum(first.size());
  const auto codec = Codec::make("int4");
  std::vector<std::vector<std::byte>> messages(
      kJobs, std::vector<std::byte>(codec->max_bytes(kJobFloats)));

  const double reduction = median_seconds(group, [&](size_t piece) {
    const size_t at = piece * kJobFloats;
    const void* operands[] = {first.data() + at, second.data() + at};
    reduce(sum.data() + at, operands, kJobFloats, DType::kFloat32, ReduceKind::kSum);
  });
  const double encoding = median_seconds(group, [&](size_t piece) {
    const size_t at = piece * kJobFloats;
    codec->encode({.values = first.data() + at, .count = kJobFloats, .first = at, .keys = {}},
                  messages[piece].data());
  });
  std::printf("{\"reduce\": %.9f, \"int4\": %.9f}\n", reduction, encoding);
}

}  // namespace
}  // namespace q7x2

int main() {
  try {
    q7x2::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
