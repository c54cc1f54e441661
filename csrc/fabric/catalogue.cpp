#include "fabric/catalogue.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <system_error>
#include <utility>

#include "base/environment.h"
#include "base/error.h"
#include "base/private_file.h"
#include "fabric/doubt.h"
#include "fabric/json.h"

extern char** environ;

namespace q7x2 {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultMaxAge = "7d";

// FNV-1a. An accidental collision is harmless: an entry without the right keys is not taken.
uint64_t hash(const std::string& text) {
  uint64_t value = 0xcbf29ce484222325;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return value;
}

int64_t now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Fabric read_fabric(const std::string& file) {
  const auto refuse = [&file](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, "cannot read the fabric in " + file + ": " + why);
  };
  std::error_code problem;
  if (fs::is_directory(file, problem)) refuse("it is a directory");
  std::ifstream stream(file, std::ios::binary);
  if (!stream) refuse(std::strerror(errno));
  // One byte more than is allowed, so that a longer file is noticed without reading all of it.
  std::string text(kMaxFabricBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(stream.gcount()));
  try {
    return fabric_from_json(text);
  } catch (const Error& error) {
    refuse(error.what());
  }
  return {};
}

void write_fabric(const std::string& file, const Fabric& fabric) {
  const std::string text = to_json(fabric);
  try {
    make_private_folder(fs::path(file).parent_path());
    replace_private_file(file, text);
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kTransport, "cannot write the fabric to " + file + ": " + error.what());
  }
}

std::string catalogue_file(std::vector<std::string> host_keys) {
  std::string folder = environment("XDG_CACHE_HOME");
  if (folder.empty()) {
    folder = environment("HOME");
    if (folder.empty()) return "";
    folder += "/.cache";
  }
  std::sort(host_keys.begin(), host_keys.end());
  std::vector<std::string> settings;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "UCX_", 4) == 0) settings.emplace_back(*entry);
  }
  std::sort(settings.begin(), settings.end());
  std::string identity;
  for (const auto* part : {&host_keys, &settings}) {
    for (const std::string& item : *part) identity += item + '\n';
    identity += '\n';
  }
  std::array<char, 32> name;
  std::snprintf(name.data(), name.size(), "%016llx",
                static_cast<unsigned long long>(hash(identity)));
  return folder + "/q7x2/fabric-" + name.data() + ".json";
}

std::chrono::seconds catalogue_max_age() {
  std::string text = environment("Q7X2_FABRIC_MAX_AGE");
  if (text.empty()) text = kDefaultMaxAge;
  int64_t number = -1;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit = problem == std::errc() ? end : "?";
  for (const auto& [name, seconds] : {std::pair("s", 1), {"m", 60}, {"h", 3600}, {"d", 86'400}}) {
    if (unit == name && number >= 0 && number <= 1'000'000) {
      return std::chrono::seconds(number * seconds);
    }
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      "Q7X2_FABRIC_MAX_AGE: expected a number and s, m, h or d, such as 7d, got '" + text + "'");
}

bool is_young(const Fabric& fabric, std::chrono::seconds max_age) {
  const std::chrono::seconds age(now() - fabric.made.time);
  if (age.count() < 0 || age >= max_age) return false;
  return age < kDoubtfulAge || doubt_of(fabric).empty();
}

std::optional<Fabric> catalogued(const std::string& file, std::chrono::seconds max_age) {
  std::error_code problem;
  if (file.empty() || !fs::exists(file, problem)) return std::nullopt;
  try {
    Fabric fabric = read_fabric(file);
    return is_young(fabric, max_age) ? std::optional(std::move(fabric)) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool catalogue_times(const Fabric& measured, std::chrono::seconds max_age) {
  std::vector<std::string> keys;
  for (const Fabric::Host& host : measured.hosts) keys.push_back(host.key);
  const std::string file = catalogue_file(std::move(keys));
  if (file.empty()) return false;
  if (auto entry = catalogued(file, max_age); entry && entry->same_hosts(measured)) {
    entry->learn(measured.tuned);
    write_fabric(file, *entry);
    return true;
  }
  if (measured.made.source != "probe" || !measured.same_hosts(measured)) return false;
  write_fabric(file, measured);
  return true;
}

std::optional<Fabric> placed(const Fabric& known, const std::vector<int>& host_of,
                             const std::vector<std::string>& keys,
                             const std::vector<std::string>& names, bool by_name) {
  std::vector<int> known_host;  // by host of the ranks
  for (size_t host = 0; host < keys.size(); ++host) {
    const auto find = [&](const auto& matches) {
      return std::find_if(known.hosts.begin(), known.hosts.end(), matches);
    };
    auto it = find([&](const Fabric::Host& h) { return h.key == keys[host]; });
    if (it == known.hosts.end() && by_name) {
      it = find([&](const Fabric::Host& h) { return h.name == names[host]; });
    }
    if (it == known.hosts.end()) return std::nullopt;
    known_host.push_back(static_cast<int>(it - known.hosts.begin()));
  }
  Fabric fabric = known;
  fabric.host_of.clear();
  fabric.bindings.clear();  // they belong to other ranks
  fabric.servers.clear();   // they belong to another job
  for (const int host : host_of) fabric.host_of.push_back(known_host[static_cast<size_t>(host)]);
  std::vector<int> all(host_of.size());
  std::iota(all.begin(), all.end(), 0);
  return fabric.subset(all);
}

}  // namespace q7x2
