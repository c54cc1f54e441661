// `./dev fuzz`: random inputs for everything that reads bytes from outside, under sanitizers.
//
//   q7x2_fuzz [--inputs N] [--seed N] [--format NAME] [--chunk N]
//
// The inputs are made in chunks, by one process per processor. A chunk that fails is named, and
// `--seed`, `--format` and `--chunk` repeat it alone.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "format.h"

namespace q7x2::fuzz {
namespace {

constexpr size_t kChunk = 20'000;
// Far longer than a chunk takes: then it hangs.
constexpr unsigned kMostSeconds = 600;

struct Options {
  size_t inputs = 10'000'000;
  uint64_t seed = std::random_device()();
  std::string format;
  std::optional<size_t> chunk;
};

struct Chunk {
  size_t format;
  size_t number;
  size_t inputs;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    const bool is_number =
        !value.empty() && std::ranges::all_of(value, [](char c) { return c >= '0' && c <= '9'; });
    if (name == "--format" && !value.empty()) {
      options.format = value;
    } else if (name == "--inputs" && is_number) {
      options.inputs = std::stoull(value);
    } else if (name == "--seed" && is_number) {
      options.seed = std::stoull(value);
    } else if (name == "--chunk" && is_number) {
      options.chunk = std::stoull(value);
    } else {
      std::cerr << "usage: fuzz [--inputs N] [--seed N] [--format NAME] [--chunk N]\n";
      std::exit(2);
    }
  }
  return options;
}

/// Of all formats in turn, so that each is tried early.
std::vector<Chunk> chunks_of(const std::vector<Format>& all, const Options& options) {
  int weights = 0;
  for (const Format& format : all) {
    if (options.format.empty() || options.format == format.name) weights += format.weight;
  }
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!options.format.empty() && options.format != all[i].name) continue;
    const size_t inputs =
        (options.inputs * static_cast<size_t>(all[i].weight) + static_cast<size_t>(weights) - 1) /
        static_cast<size_t>(weights);
    for (size_t number = 0; number * kChunk < inputs; ++number) {
      if (options.chunk && *options.chunk != number) continue;
      const size_t rest = inputs - number * kChunk;
      chunks.push_back({i, number, options.chunk ? kChunk : std::min(kChunk, rest)});
    }
  }
  std::ranges::stable_sort(chunks, {}, &Chunk::number);
  return chunks;
}

/// In a process of its own, which a sanitizer may end.
[[noreturn]] void run_chunk(const Format& format, const Chunk& chunk, uint64_t seed, int results) {
  ::alarm(kMostSeconds);
  try {
    const Tally tally = run(format, seed + chunk.number, chunk.inputs);
    if (::write(results, &tally, sizeof(tally)) == sizeof(tally)) std::_Exit(0);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
  }
  std::_Exit(1);
}

struct Running {
  size_t chunk;
  int results;
};

int fuzz(const Options& options) {
  const std::vector<Format> all = formats();
  const std::vector<Chunk> chunks = chunks_of(all, options);
  if (chunks.empty()) {
    std::cerr << "no format '" << options.format << "', or no such chunk\n";
    return 2;
  }
  std::cout << "seed " << options.seed << std::endl;
  const auto began = std::chrono::steady_clock::now();
  const size_t most = std::max(1U, std::thread::hardware_concurrency());
  std::vector<Tally> tallies(all.size());
  std::map<pid_t, Running> running;
  int failures = 0;
  for (size_t next = 0; next < chunks.size() || !running.empty();) {
    if (next < chunks.size() && running.size() < most) {
      int ends[2];
      if (::pipe(ends) != 0) return 2;
      const pid_t child = ::fork();
      if (child < 0) return 2;
      const Chunk& chunk = chunks[next];
      if (child == 0) run_chunk(all[chunk.format], chunk, options.seed, ends[1]);
      ::close(ends[1]);
      running[child] = {next++, ends[0]};
      continue;
    }
    int status = 0;
    const pid_t child = ::wait(&status);
    const auto found = running.find(child);
    if (found == running.end()) continue;
    const Chunk& chunk = chunks[found->second.chunk];
    Tally tally;
    if (status == 0 && ::read(found->second.results, &tally, sizeof(tally)) == sizeof(tally)) {
      tallies[chunk.format].accepted += tally.accepted;
      tallies[chunk.format].refused += tally.refused;
    } else {
      ++failures;
      std::cout << "FAILED: --seed " << options.seed << " --format '" << all[chunk.format].name
                << "' --chunk " << chunk.number << std::endl;
    }
    ::close(found->second.results);
    running.erase(found);
  }
  size_t inputs = 0;
  std::printf("%-18s %12s %12s\n", "format", "accepted", "refused");
  for (size_t i = 0; i < all.size(); ++i) {
    const auto [accepted, refused] = tallies[i];
    inputs += accepted + refused;
    if (accepted + refused == 0) continue;
    std::printf("%-18s %12zu %12zu\n", all[i].name.c_str(), accepted, refused);
    // The inputs are worth something: some are read to the end, and some are not.
    if (accepted == 0 || refused == 0) {
      ++failures;
      std::printf("FAILED: all inputs of '%s' end in the same way\n", all[i].name.c_str());
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
  std::printf("%zu inputs in %.0f s, %d failures\n", inputs, seconds.count(), failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace q7x2::fuzz

int main(int argc, char** argv) {
  ::setenv("Q7X2_LOG", "off", 1);
  return q7x2::fuzz::fuzz(q7x2::fuzz::parse(argc, argv));
}
