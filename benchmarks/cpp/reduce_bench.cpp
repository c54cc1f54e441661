// Bandwidth of the reduction kernels on one core, for every instruction set, beside memcpy.
//
// A figure is the bytes read and written by a call (sources + 1 for a fold, 2 for memcpy) over the
// median CPU time of its repetitions. The rows of one size run interleaved, so that a noisy
// neighbour meets all of them alike.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/reduce_isa.h"

namespace q7x2 {
namespace {

constexpr size_t kMaxSources = 4;
constexpr int kRounds = 7;

struct Free {
  void operator()(uint8_t* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<uint8_t, Free>;

Memory allocate(size_t bytes) {
  Memory memory(static_cast<uint8_t*>(std::aligned_alloc(64, bytes)));
  // The byte pattern of ordinary numbers in every float format.
  std::memset(memory.get(), 0x32, bytes);
  return memory;
}

struct Row {
  std::string name;
  std::function<void()> call;
  double bytes_moved;
  std::vector<double> seconds;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Seconds this thread has computed: time in which others held the core does not count.
double cpu_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void measure(std::vector<Row>& rows, size_t bytes) {
  const size_t calls = std::max<size_t>(1, (size_t{8} << 20) / bytes);
  for (int round = -1; round < kRounds; ++round) {
    for (Row& row : rows) {
      const double start = cpu_seconds();
      for (size_t i = 0; i < calls; ++i) row.call();
      const double elapsed = cpu_seconds() - start;
      if (round >= 0) row.seconds.push_back(elapsed / static_cast<double>(calls));
    }
  }
}

void run_size(size_t bytes) {
  std::vector<Memory> sources;
  std::vector<const void*> pointers;
  for (size_t k = 0; k < kMaxSources; ++k) {
    sources.push_back(allocate(bytes));
    pointers.push_back(sources.back().get());
  }
  const Memory dst = allocate(bytes);

  std::vector<Row> rows;
  rows.push_back({"memcpy",
                  [&] {
                    std::memcpy(dst.get(), pointers[0], bytes);
                    asm volatile("" ::: "memory");
                  },
                  2.0 * static_cast<double>(bytes),
                  {}});
  constexpr DType kDTypes[] = {DType::kFloat32,  DType::kFloat64,      DType::kFloat16,
                               DType::kBFloat16, DType::kFloat8E4M3FN, DType::kFloat8E5M2,
                               DType::kInt8,     DType::kInt64};
  for (const DType dtype : kDTypes) {
    const size_t count = bytes / element_size(dtype);
    const auto add = [&](const ReduceIsa& isa, ReduceKind kind, size_t source_count, int divisor) {
      rows.push_back({std::string(to_string(dtype)) + ' ' + isa.name + ' ' + to_string(kind) +
                          " of " + std::to_string(source_count) + (divisor == 1 ? "" : " mean"),
                      [=, &pointers, to = dst.get()] {
                        isa.kernel(to, pointers.data(), source_count, count, dtype, kind, divisor);
                      },
                      static_cast<double>((source_count + 1) * bytes),
                      {}});
    };
    for (const ReduceIsa& isa : reduce_isas()) {
      add(isa, ReduceKind::kSum, 2, 1);
      add(isa, ReduceKind::kSum, 4, 1);
      add(isa, ReduceKind::kSum, 2, 3);
      add(isa, ReduceKind::kMax, 2, 1);
    }
  }
  measure(rows, bytes);
  std::printf("%zu KiB a buffer\n", bytes >> 10);
  for (const Row& row : rows) {
    std::printf("  %-40s %7.1f GB/s\n", row.name.c_str(),
                row.bytes_moved / median(row.seconds) * 1e-9);
  }
}

}  // namespace
}  // namespace q7x2

int main(int argc, char** argv) {
  std::vector<size_t> sizes_kib = {16, 4096, 65536};
  if (argc > 1) {
    sizes_kib.clear();
    for (int i = 1; i < argc; ++i) {
      const long kib = std::strtol(argv[i], nullptr, 10);
      if (kib < 1) {
        std::fprintf(stderr, "usage: %s [KiB a buffer]...\n", argv[0]);
        return 2;
      }
      sizes_kib.push_back(static_cast<size_t>(kib));
    }
  }
  for (const size_t kib : sizes_kib) q7x2::run_size(kib << 10);
}
