// One format of bytes that come from outside, and how random inputs are made for it.
//
// Most inputs are valid ones with a few changes, so that they get past the first checks. Inputs
// that were accepted are changed further. What reads them must accept them or throw q7x2::Error,
// and a sanitizer watches. The same seed gives the same inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace q7x2::fuzz {

using Random = std::mt19937_64;

struct Format {
  std::string name;
  /// Its share of all inputs. Formats that are slow to read get fewer.
  int weight;
  /// A valid input.
  std::function<std::string(Random&)> example;
  /// Reads an input, which lies in memory of exactly its length. False: it is refused, which an
  /// Error says as well. Calls `require` for what must hold of what it has read.
  std::function<bool(std::string_view input, Random&)> read;
  /// Words of a text format, which changes put in.
  std::vector<std::string> words = {};
};

inline void PrintTo(const Format& format, std::ostream* out) {
  *out << format.name;
}

/// Throws std::logic_error, which ends the run.
inline void require(bool condition, const char* what) {
  if (!condition) throw std::logic_error(what);
}

struct Tally {
  size_t accepted = 0;
  size_t refused = 0;
};

/// Throws std::logic_error, with the input, if something other than acceptance or an Error comes of
/// it.
Tally run(const Format& format, uint64_t seed, size_t inputs);

std::vector<Format> formats();

// One file each.
std::vector<Format> peer_info_formats();
std::vector<Format> record_formats();
std::vector<Format> control_formats();
std::vector<Format> proof_formats();
std::vector<Format> letter_formats();
std::vector<Format> bootstrap_message_formats();
std::vector<Format> codec_formats();
std::vector<Format> fabric_formats();
std::vector<Format> plan_formats();
std::vector<Format> row_formats();
std::vector<Format> stream_formats();

}  // namespace q7x2::fuzz
