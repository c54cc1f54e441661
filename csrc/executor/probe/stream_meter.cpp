#include "executor/probe/stream_meter.h"

#include <algorithm>
#include <chrono>
#include <iterator>

namespace q7x2 {
namespace {

// Left out: the first bytes, or on slow links the first part of the time.
constexpr size_t kIgnoredBytes = size_t{512} << 10;
constexpr double kIgnoredPart = 0.4;
constexpr size_t kParts = 5;
// Between far hosts: round trips that count, and how long one is at least, in seconds.
constexpr int kRoundTrips = 3;
constexpr double kShortestPart = 0.03;

// A stream as a whole begins slowly on a fast link, and may pause once: less than the steady rate
// by so much is no contradiction.
constexpr double kDoubt = 1.25;

double seconds_between(TimePoint from, TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

void StreamMeter::passed(TimePoint time, size_t bytes) {
  notes_.push_back({time, this->bytes() + bytes});
}

double StreamMeter::seconds_at(TimePoint now) const {
  return notes_.empty() ? 0 : seconds_between(notes_.front().time, now);
}

double StreamMeter::rate_between(const Note& from, const Note& to) {
  return static_cast<double>(to.bytes - from.bytes) /
         std::max(seconds_between(from.time, to.time), 1e-9);
}

// From note to note, because what a window holds passes at once. A pause of more than a round trip
// belongs to what came after it.
std::vector<StreamMeter::Part> StreamMeter::last_round_trips() const {
  const std::chrono::duration<double> part(std::max(round_trip_, kShortestPart));
  const auto last_before = [&](TimePoint time) {
    const auto after =
        std::upper_bound(notes_.begin(), notes_.end(), time,
                         [](TimePoint until, const Note& note) { return until < note.time; });
    return after == notes_.begin() ? after : std::prev(after);
  };
  std::vector<Part> parts;
  auto end = std::prev(notes_.end());
  for (int i = 1; i <= kRoundTrips; ++i) {
    const TimePoint time =
        notes_.back().time - std::chrono::duration_cast<Clock::duration>(i * part);
    if (time < notes_.front().time) break;
    const auto begin = last_before(time);
    if (begin >= end || end->time - begin->time < part / 2) continue;
    parts.push_back({*begin, *end});
    end = begin;
  }
  if (parts.empty()) parts.push_back({notes_.front(), notes_.back()});
  return parts;
}

std::vector<double> StreamMeter::part_rates() const {
  if (notes_.size() < 2) return {};
  if (round_trip_ > 0) {
    std::vector<double> rates;
    for (const Part& part : last_round_trips()) {
      rates.push_back(rate_between(part.begin, part.end));
    }
    std::sort(rates.begin(), rates.end());
    return rates;
  }
  auto first = std::find_if(notes_.begin(), notes_.end(), [&](const Note& note) {
    return note.bytes >= kIgnoredBytes || seconds_at(note.time) >= kIgnoredPart * seconds_;
  });
  if (notes_.end() - first < 2) first = notes_.end() - 2;
  const auto intervals = static_cast<size_t>(notes_.end() - first) - 1;
  const size_t parts = std::min(kParts, intervals);
  std::vector<double> rates;
  for (size_t part = 0; part < parts; ++part) {
    const auto at = [&](size_t i) -> const Note& {
      return first[static_cast<std::ptrdiff_t>(i * intervals / parts)];
    };
    rates.push_back(rate_between(at(part), at(part + 1)));
  }
  std::sort(rates.begin(), rates.end());
  return rates;
}

double StreamMeter::steady_rate() const {
  if (round_trip_ > 0 && notes_.size() > 1) {
    const std::vector<Part> parts = last_round_trips();
    return rate_between(parts.back().begin, parts.front().end);
  }
  const std::vector<double> rates = part_rates();
  return rates.empty() ? 0 : rates[(rates.size() - 1) / 2];
}

double StreamMeter::spread() const {
  const std::vector<double> rates = part_rates();
  const double rate = steady_rate();
  return rate > 0 ? (rates.back() - rates.front()) / rate : 0;
}

double StreamMeter::burst() const {
  if (round_trip_ > 0) return 0;
  const double rate = steady_rate();
  double most = 0;
  for (const Note& note : notes_) {
    if (note.bytes > kIgnoredBytes) break;
    const auto came = static_cast<double>(note.bytes - notes_.front().bytes);
    most = std::max(most, came - rate * seconds_at(note.time));
  }
  return most;
}

double StreamMeter::whole_rate() const {
  return notes_.size() < 2 ? 0 : rate_between(notes_.front(), notes_.back());
}

double confirmed_rate(double received, double acknowledged) {
  return std::min(received, kDoubt * acknowledged);
}

}  // namespace q7x2
