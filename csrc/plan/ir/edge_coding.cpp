#include "plan/ir/edge_coding.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/error.h"
#include "fabric/fabric.h"

namespace q7x2 {
namespace {

constexpr std::array kWishes = {EdgeWish::kAuto, EdgeWish::kAll, EdgeWish::kHost, EdgeWish::kRack,
                                EdgeWish::kSlow};

/// The codings that compete for a wish, the one with most edges first.
std::vector<Edges> meaning_of(EdgeWish wish) {
  switch (wish) {
    case EdgeWish::kAuto:
      return {Edges::kAll, Edges::kHosts, Edges::kRacks};
    case EdgeWish::kAll:
      return {Edges::kAll};
    case EdgeWish::kHost:
      return {Edges::kHosts};
    case EdgeWish::kRack:
      return {Edges::kRacks};
    case EdgeWish::kSlow:
      return {Edges::kAll, Edges::kHosts, Edges::kRacks, Edges::kNone};
  }
  return {};
}

}  // namespace

const char* to_string(Edges edges) {
  switch (edges) {
    case Edges::kNone:
      return "none";
    case Edges::kRacks:
      return "racks";
    case Edges::kHosts:
      return "hosts";
    case Edges::kAll:
      return "all";
  }
  return "?";
}

const char* to_string(EdgeWish wish) {
  switch (wish) {
    case EdgeWish::kAuto:
      return "auto";
    case EdgeWish::kAll:
      return "all";
    case EdgeWish::kHost:
      return "host";
    case EdgeWish::kRack:
      return "rack";
    case EdgeWish::kSlow:
      return "slow";
  }
  return "?";
}

EdgeWish parse_edge_wish(const std::string& name) {
  for (const EdgeWish wish : kWishes) {
    if (name == to_string(wish)) return wish;
  }
  std::string message = "edges: expected one of ";
  const char* separator = "";
  for (const EdgeWish wish : kWishes) {
    message.append(std::exchange(separator, ", ")).append(to_string(wish));
  }
  throw Error(ErrorCode::kInvalidArgument, message + ", got '" + name + "'");
}

EdgeCoding::EdgeCoding(Edges edges, int world_size, const Fabric* fabric) : edges_(edges) {
  const bool by_rank = edges == Edges::kAll || (edges == Edges::kHosts && fabric == nullptr);
  std::vector<int> zones;
  for (int rank = 0; rank < world_size; ++rank) {
    if (by_rank) {
      zones.push_back(rank);
    } else if (fabric == nullptr || edges == Edges::kNone) {
      zones.push_back(0);
    } else {
      zones.push_back(edges == Edges::kHosts ? fabric->host_of[static_cast<size_t>(rank)]
                                             : fabric->rack_of(rank));
    }
  }
  num_zones_ = std::set<int>(zones.begin(), zones.end()).size();
  zones_ = std::make_shared<const std::vector<int>>(std::move(zones));
}

std::vector<EdgeCoding> edge_codings(EdgeWish wish, int world_size, const Fabric* fabric) {
  std::vector<EdgeCoding> codings;
  for (const Edges edges : meaning_of(wish)) {
    EdgeCoding coding(edges, world_size, fabric);
    if (!coding.any()) {
      if (wish == EdgeWish::kAuto && !codings.empty()) continue;
      coding = {Edges::kNone, world_size, fabric};
    }
    // Racks consist of hosts, and hosts of ranks, so equal numbers of zones mean the same zones.
    const bool is_new = std::ranges::none_of(
        codings, [&](const EdgeCoding& other) { return coding.num_zones() == other.num_zones(); });
    if (is_new) codings.push_back(std::move(coding));
  }
  return codings;
}

}  // namespace q7x2
