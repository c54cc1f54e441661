#include "fabric/json_fields.h"

#include <array>
#include <cmath>
#include <ctime>
#include <limits>

#include "base/error.h"

namespace q7x2 {
namespace {

// The format itself is seven deep. Together with the length of the text this bounds memory: a value
// of a text may be a single character.
constexpr int kMaxDepth = 8;
constexpr size_t kMaxValues = size_t{1} << 21;
constexpr int kMaxCount = 1 << 20;  // of ranks, cores, ...
constexpr size_t kMaxText = 1024;
constexpr size_t kShownOfValue = 40;

constexpr std::array kCollectives = {
    Collective::kAllReduce, Collective::kReduce,        Collective::kBroadcast,
    Collective::kAllGather, Collective::kReduceScatter, Collective::kAllToAll,
    Collective::kGather,    Collective::kScatter,       Collective::kBarrier,
};

[[noreturn]] void invalid(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, what);
}

}  // namespace

std::string line(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json parsed_json(std::string_view text, size_t max_bytes) {
  if (text.size() > max_bytes) {
    invalid("expected at most " + std::to_string(max_bytes) + " bytes of JSON, got " +
            std::to_string(text.size()));
  }
  size_t values = 0;
  const auto bounded = [&values](int depth, Json::parse_event_t, const Json&) {
    if (depth > kMaxDepth) {
      invalid("values nest deeper than " + std::to_string(kMaxDepth) + " levels");
    }
    if (++values > kMaxValues) {
      invalid("more than " + std::to_string(kMaxValues) + " values");
    }
    return true;
  };
  try {
    return Json::parse(text, bounded);
  } catch (const Json::exception& error) {
    invalid(std::string("not JSON: ") + error.what());
  }
}

void Place::complain(const std::string& expected) const {
  std::string shown = line(value_);
  if (shown.size() > kShownOfValue) shown = shown.substr(0, kShownOfValue) + "...";
  invalid(path_ + ": expected " + expected + ", got " + shown);
}

double Place::quantity() const {
  const double number = value_.is_number() ? value_.get<double>() : -1;
  if (!std::isfinite(number) || number < 0) complain("a number of at least 0");
  return number;
}

int64_t Place::whole(int64_t least, int64_t most) const {
  const bool fits = value_.is_number_integer() &&
                    !(value_.is_number_unsigned() &&
                      value_.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()});
  const int64_t number = fits ? value_.get<int64_t>() : 0;
  if (!fits || number < least || number > most) {
    complain("a whole number of " + std::to_string(least) + " to " + std::to_string(most));
  }
  return number;
}

int Place::count(int least) const {
  return static_cast<int>(whole(least, kMaxCount));
}

int Place::index(size_t count) const {
  return static_cast<int>(whole(0, static_cast<int64_t>(count) - 1));
}

int Place::numa_node() const {
  return static_cast<int>(whole(-1, kMaxCount));
}

uint64_t Place::bytes() const {
  return static_cast<uint64_t>(whole(0, std::numeric_limits<int64_t>::max()));
}

bool Place::flag() const {
  if (!value_.is_boolean()) complain("true or false");
  return value_.get<bool>();
}

// Control characters have no place in names, and could drive the terminal that shows them.
std::string Place::text() const {
  std::string text = value_.is_string() ? value_.get<std::string>() : "\n";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) complain("a line of text");
  }
  if (text.size() > kMaxText) complain("a text of at most " + std::to_string(kMaxText) + " bytes");
  return text;
}

int64_t Place::time() const {
  std::tm utc{};
  const std::string string = text();
  const char* end = strptime(string.c_str(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  if (end == nullptr || *end != '\0') complain("a time such as \"2025-01-31T08:00:00Z\"");
  return timegm(&utc);
}

Collective Place::collective() const {
  const std::string name = text();
  std::string all;
  for (const Collective collective : kCollectives) {
    if (name == to_string(collective)) return collective;
    all += (all.empty() ? "" : ", ") + std::string(to_string(collective));
  }
  complain("one of " + all);
}

Fields::Fields(const Place& place) : place_(place) {
  if (!place.value().is_object()) place.complain("an object");
}

Place Fields::required(const std::string& name) {
  const auto found = find(name);
  if (!found) invalid((place_.path().empty() ? name : place_.path() + "." + name) + " is missing");
  return *found;
}

void Fields::end() const {
  for (const auto& [name, value] : place_.value().items()) {
    if (seen_.count(name) == 0) {
      invalid((place_.path().empty() ? "" : place_.path() + ": ") + "unknown field " +
              line(name.substr(0, kShownOfValue)));
    }
  }
}

std::optional<Place> Fields::find(const std::string& name) {
  seen_.insert(name);
  const auto it = place_.value().find(name);
  if (it == place_.value().end()) return std::nullopt;
  return Place(*it, place_.path().empty() ? name : place_.path() + "." + name);
}

}  // namespace q7x2
