#include "executor/probe/relay.h"

#include <algorithm>
#include <iterator>
#include <ranges>

#include "base/error.h"
#include "transport/peer/peer_info.h"

namespace q7x2 {

std::vector<Handover> handovers(int position, int count) {
  std::vector<Handover> list;
  for (int step = 0, distance = 1; distance < count; ++step, distance *= 2) {
    if ((position & distance) != 0) {
      list.push_back({step, position, position - distance, std::min(distance, count - position)});
      break;
    }
    if (const int other = position + distance; other < count) {
      list.push_back({step, other, position, std::min(distance, count - other)});
    }
  }
  return list;
}

std::vector<std::string> gather(Courier& courier, const std::vector<int>& order, int position,
                                const std::string& mine) {
  std::vector<std::string> texts{mine};
  for (const Handover& each : handovers(position, static_cast<int>(order.size()))) {
    if (each.from == position) {
      courier.send(order[static_cast<size_t>(each.to)], encode_list(texts));
      return {};
    }
    const int source = order[static_cast<size_t>(each.from)];
    std::vector<std::string> theirs = decode_list(courier.receive(source));
    if (theirs.size() != static_cast<size_t>(each.count)) {
      throw Error(ErrorCode::kMismatch,
                  "expected the texts of " + std::to_string(each.count) + " ranks, got " +
                      std::to_string(theirs.size()),
                  source);
    }
    std::ranges::move(theirs, std::back_inserter(texts));
  }
  return texts;
}

std::string spread(Courier& courier, const std::vector<int>& order, int position,
                   const std::string& text) {
  std::string known = text;
  const std::vector<Handover> list = handovers(position, static_cast<int>(order.size()));
  for (const Handover& each : std::views::reverse(list)) {
    if (each.from == position) {
      known = courier.receive(order[static_cast<size_t>(each.to)]);
    } else {
      courier.send(order[static_cast<size_t>(each.from)], known);
    }
  }
  return known;
}

int spread_source(const std::vector<int>& order, int position) {
  const std::vector<Handover> list = handovers(position, static_cast<int>(order.size()));
  if (list.empty() || list.back().from != position) return -1;
  return order[static_cast<size_t>(list.back().to)];
}

}  // namespace q7x2
