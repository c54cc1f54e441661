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
constexpr int kMaxCount = 1 << 20;  // number of ranks, cores, ...
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

std::string joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

/// Looks at a text while it is parsed, and refuses what would take very much memory, and objects
/// that name a field twice: whoever reads the text may take it for either value.
class ParseGuard {
 public:
  void see(int depth, Json::parse_event_t event, const Json& value) {
    using Event = Json::parse_event_t;
    if (depth > kMaxDepth) {
      invalid("values nest deeper than " + std::to_string(kMaxDepth) + " levels");
    }
    if (++values_ > kMaxValues) {
      invalid("more than " + std::to_string(kMaxValues) + " values");
    }
    switch (event) {
      case Event::object_start:
      case Event::array_start:
        count_item();
        open_.push_back({.is_array = event == Event::array_start});
        return;
      case Event::object_end:
      case Event::array_end:
        open_.pop_back();
        return;
      case Event::value:
        count_item();
        return;
      case Event::key:
        name(value.get<std::string>());
        return;
    }
  }

 private:
  /// An object or an array that has begun and not ended.
  struct Open {
    bool is_array = false;
    size_t items = 0;
    std::set<std::string> names = {};
    std::string name = {};  ///< the last one
  };

  void count_item() {
    if (!open_.empty() && open_.back().is_array) ++open_.back().items;
  }

  void name(std::string name) {
    Open& object = open_.back();
    object.name = name;
    if (!object.names.insert(std::move(name)).second) {
      std::string path;
      for (const Open& each : open_) {
        path = each.is_array ? path + "[" + std::to_string(each.items - 1) + "]"
                             : joined(path, shown(each.name));
      }
      invalid(path + ": the field is named twice");
    }
  }

  static std::string shown(const std::string& name) {
    const std::string text = line(name.substr(0, kShownOfValue));
    return text.substr(1, text.size() - 2);
  }

  std::vector<Open> open_;
  size_t values_ = 0;
};

}  // namespace

std::string line(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json parsed_json(std::string_view text, size_t max_bytes) {
  if (text.size() > max_bytes) {
    invalid("expected at most " + std::to_string(max_bytes) + " bytes of JSON, got " +
            std::to_string(text.size()));
  }
  ParseGuard guard;
  const auto see = [&guard](int depth, Json::parse_event_t event, const Json& value) {
    guard.see(depth, event, value);
    return true;
  };
  try {
    return Json::parse(text, see);
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
  if (!found) invalid(joined(place_.path(), name) + " is missing");
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
  return Place(*it, joined(place_.path(), name));
}

}  // namespace q7x2
