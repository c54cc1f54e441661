#include "plan/cost/tally.h"

#include <algorithm>
#include <unordered_map>

namespace q7x2 {

Tally::Tally(const Site& site, int members)
    : site_(site),
      ranks_(static_cast<size_t>(members)),
      is_touched_(static_cast<size_t>(members)),
      resources_(site.routes.resources().size()),
      edge_senders_(resources_.size()),
      senders_(resources_.size()),
      is_loaded_(resources_.size()),
      on_host_(site.members.hosts.size()),
      in_rack_(site.members.racks.size()),
      left_out_from_(static_cast<size_t>(members)),
      left_out_to_(static_cast<size_t>(members)) {}

void Tally::count(const Round& round, double ratio) {
  coded_ = round.coded;
  ratio_ = ratio;
  for (const int rank : touched_) {
    ranks_[static_cast<size_t>(rank)] = {};
    is_touched_[static_cast<size_t>(rank)] = false;
  }
  touched_.clear();
  for (const int resource : touched_resources_) {
    resources_[static_cast<size_t>(resource)] = 0;
    is_loaded_[static_cast<size_t>(resource)] = false;
  }
  touched_resources_.clear();
  alpha_ = alpha_sum_ = longest_far_ = messages_ = 0;
  for (const Edge& edge : round.edges) add(round, edge);
  for (const Cross& cross : round.crosses) add(round, cross);
}

Tally::Rank& Tally::touch(int rank) {
  const auto index = static_cast<size_t>(rank);
  if (!is_touched_[index]) {
    is_touched_[index] = true;
    touched_.push_back(rank);
  }
  return ranks_[index];
}

void Tally::count_alpha(double alpha, double messages) {
  alpha_ = std::max(alpha_, alpha);
  alpha_sum_ += alpha * messages;
}

void Tally::load(int resource, double share) {
  const auto index = static_cast<size_t>(resource);
  if (!is_loaded_[index]) {
    is_loaded_[index] = true;
    touched_resources_.push_back(resource);
  }
  resources_[index] += share;
}

double Tally::coded(const Peers& peers) const {
  return (codes_near() ? peers.near : 0) + (codes_in_rack() ? peers.in_rack : 0) +
         (codes_beyond() ? peers.beyond : 0);
}

double Tally::ratio_of(int from, int to) const {
  if (site_.members.same_host(from, to)) return near_ratio();
  return site_.members.rack_of(from) == site_.members.rack_of(to) ? in_rack_ratio()
                                                                  : beyond_ratio();
}

void Tally::send(const Round& round, int rank, const Peers& peers, double messages, double share) {
  if (peers.all() == 0) return;
  Rank& it = touch(rank);
  const double length = messages * share;
  it.messages_out_near += peers.near * messages;
  it.messages_out_far += peers.far() * messages;
  it.blocks_out = std::max(it.blocks_out, messages);
  messages_ += peers.all() * messages;
  if (round.same_data) {
    if (coded(peers) > 0) it.encoded = std::max(it.encoded, length);
    if (coded(peers) < peers.all()) it.exact = std::max(it.exact, length);
    if (peers.near > 0) {
      it.staged = std::max(it.staged, length * near_ratio());
      it.stages = std::max(it.stages, messages);
    }
  } else {
    it.encoded += coded(peers) * length;
    it.exact += (peers.all() - coded(peers)) * length;
    it.staged += peers.near * length * near_ratio();
    it.stages += peers.near * messages;
  }
}

void Tally::receive(int rank, const Peers& peers, double messages, double share) {
  if (peers.all() == 0) return;
  Rank& it = touch(rank);
  const double length = messages * share;
  it.messages_in_near += peers.near * messages;
  it.messages_in_far += peers.far() * messages;
  it.in_coded += coded(peers) * length;
  it.in += (peers.all() - coded(peers)) * length;
  if (!codes_near()) it.in_near += peers.near * length;
  it.parts_in = std::max(it.parts_in, messages);
  it.parts_in_share = std::max(it.parts_in_share, length);
}

void Tally::add(const Round& round, const Edge& edge) {
  const bool is_near = site_.members.same_host(edge.from, edge.to);
  const double ratio = ratio_of(edge.from, edge.to);
  Peers peer;
  peer.of(site_.members, edge.from, edge.to) = 1;
  send(round, edge.from, peer, edge.messages, edge.share);
  receive(edge.to, peer, edge.messages, edge.share);
  const Routes::Route route = site_.routes.between(edge.from, edge.to);
  count_alpha(route.cost.alpha, edge.messages);
  if (!is_near) longest_far_ = std::max(longest_far_, edge.share * ratio);
  for (const int resource : route.resources) load(resource, edge.messages * edge.share * ratio);
  const auto host = [&](int rank) {
    return static_cast<uint64_t>(site_.members.host_of[static_cast<size_t>(rank)]);
  };
  if (is_near || !host_pairs_.insert(host(edge.from) * on_host_.size() + host(edge.to)).second) {
    return;
  }
  for (const int resource : route.resources) {
    const auto r = static_cast<size_t>(resource);
    senders_[r] = std::max(senders_[r], ++edge_senders_[r]);
  }
}

std::vector<std::pair<int, int>> Tally::left_out(const Cross& cross) const {
  std::vector<std::pair<int, int>> pairs;
  std::vector<bool> is_target(ranks_.size());
  for (const int rank : *cross.to) is_target[static_cast<size_t>(rank)] = true;
  for (const int rank : *cross.from) {
    if (is_target[static_cast<size_t>(rank)]) pairs.emplace_back(rank, rank);
  }
  const size_t diagonal = cross.off_diagonal ? std::min(cross.from->size(), cross.to->size()) : 0;
  for (size_t i = 0; i < diagonal; ++i) {
    if ((*cross.from)[i] != (*cross.to)[i]) pairs.emplace_back((*cross.from)[i], (*cross.to)[i]);
  }
  return pairs;
}

// Counted as if every rank of the one list sent to every rank of the other; what is left out is
// taken off again.
void Tally::add(const Round& round, const Cross& cross) {
  const Fabric& fabric = site_.members;
  const auto host_of = [&](int rank) {
    return static_cast<size_t>(fabric.host_of[static_cast<size_t>(rank)]);
  };
  const auto rack_of = [&](int rank) { return static_cast<size_t>(fabric.rack_of(rank)); };
  for (const int rank : *cross.from) {
    ++on_host_[host_of(rank)].from;
    ++in_rack_[rack_of(rank)].from;
  }
  for (const int rank : *cross.to) {
    ++on_host_[host_of(rank)].to;
    ++in_rack_[rack_of(rank)].to;
  }
  const double length = cross.messages * cross.share;
  load_all(cross, length);
  if (!fabric.bindings.empty()) load_interconnects(cross, length);
  const auto pairs = left_out(cross);
  for (const auto& [from, to] : pairs) {
    left_out_from_[static_cast<size_t>(from)].of(fabric, from, to) += 1;
    left_out_to_[static_cast<size_t>(to)].of(fabric, from, to) += 1;
    const double less = -length * ratio_of(from, to);
    for (const int resource : site_.routes.between(from, to).resources) load(resource, less);
  }
  Peers all;
  for (const int rank : *cross.from) {
    const Peers& out = left_out_from_[static_cast<size_t>(rank)];
    const double on_host = on_host_[host_of(rank)].to;
    const double in_rack = in_rack_[rack_of(rank)].to;
    const Peers peers{on_host - out.near, in_rack - on_host - out.in_rack,
                      static_cast<double>(cross.to->size()) - in_rack - out.beyond};
    send(round, rank, peers, cross.messages, cross.share);
    all = {all.near + peers.near, all.in_rack + peers.in_rack, all.beyond + peers.beyond};
  }
  for (const int rank : *cross.to) {
    const Peers& out = left_out_to_[static_cast<size_t>(rank)];
    const double on_host = on_host_[host_of(rank)].from;
    const double in_rack = in_rack_[rack_of(rank)].from;
    receive(rank,
            {on_host - out.near, in_rack - on_host - out.in_rack,
             static_cast<double>(cross.from->size()) - in_rack - out.beyond},
            cross.messages, cross.share);
  }
  if (all.near > 0) count_alpha(fabric.memory.alpha, all.near * cross.messages);
  if (all.in_rack > 0) count_alpha(fabric.network.alpha, all.in_rack * cross.messages);
  if (all.beyond > 0) {
    std::vector<bool> takes_part;
    for (const Ends& ends : in_rack_) takes_part.push_back(ends.from + ends.to > 0);
    count_alpha(site_.routes.ordinary_alpha(takes_part), all.beyond * cross.messages);
  }
  if (all.in_rack > 0) longest_far_ = std::max(longest_far_, cross.share * in_rack_ratio());
  if (all.beyond > 0) longest_far_ = std::max(longest_far_, cross.share * beyond_ratio());
  for (const auto& [from, to] : pairs) {
    left_out_from_[static_cast<size_t>(from)] = {};
    left_out_to_[static_cast<size_t>(to)] = {};
  }
  for (const auto* const ranks : {cross.from.get(), cross.to.get()}) {
    for (const int rank : *ranks) on_host_[host_of(rank)] = in_rack_[rack_of(rank)] = {};
  }
}

void Tally::load_interconnects(const Cross& cross, double length) {
  std::unordered_map<int, std::vector<int>> to_on;
  for (const int to : *cross.to) {
    to_on[site_.members.host_of[static_cast<size_t>(to)]].push_back(to);
  }
  for (const int from : *cross.from) {
    for (const int to : to_on[site_.members.host_of[static_cast<size_t>(from)]]) {
      if (!site_.members.crosses_numa(from, to)) continue;
      const Routes::Route route = site_.routes.between(from, to);
      alpha_ = std::max(alpha_, route.cost.alpha);
      for (const int resource : route.resources) {
        const Routes::Kind kind = site_.routes.resources()[static_cast<size_t>(resource)].kind;
        if (kind == Routes::Kind::kInterconnect) load(resource, length * near_ratio());
      }
    }
  }
}

void Tally::load_all(const Cross& cross, double length) {
  const Routes& routes = site_.routes;
  const auto all_from = static_cast<double>(cross.from->size());
  const auto all_to = static_cast<double>(cross.to->size());
  int sending_hosts = 0;
  for (const Ends& ends : on_host_) sending_hosts += ends.from > 0 ? 1 : 0;
  for (size_t host = 0; host < on_host_.size(); ++host) {
    const Ends& ends = on_host_[host];
    if (ends.from == 0 && ends.to == 0) continue;
    const Routes::Ports& ports = routes.ports(static_cast<int>(host));
    if (ends.from * ends.to > 0) load(ports.memory, length * near_ratio() * ends.from * ends.to);
    const Ends& rack = in_rack_[static_cast<size_t>(ports.rack)];
    const double out = in_rack_ratio() * (rack.to - ends.to) + beyond_ratio() * (all_to - rack.to);
    const double in =
        in_rack_ratio() * (rack.from - ends.from) + beyond_ratio() * (all_from - rack.from);
    if (ends.from * (all_to - ends.to) > 0) load(ports.egress, length * ends.from * out);
    if (ends.to * (all_from - ends.from) == 0) continue;
    load(ports.ingress, length * ends.to * in);
    int& senders = senders_[static_cast<size_t>(ports.ingress)];
    senders = std::max(senders, sending_hosts - (ends.from > 0 ? 1 : 0));
  }
  for (size_t rack = 0; rack < in_rack_.size() && in_rack_.size() > 1; ++rack) {
    const Ends& ends = in_rack_[rack];
    const Routes::Cable& cable = routes.cable(static_cast<int>(rack));
    load(cable.up, length * beyond_ratio() * ends.from * (all_to - ends.to));
    load(cable.down, length * beyond_ratio() * ends.to * (all_from - ends.from));
  }
  for (const auto& [a, b] : routes.exceptions()) {
    const double pairs =
        on_host_[static_cast<size_t>(a)].from * on_host_[static_cast<size_t>(b)].to;
    if (pairs == 0) continue;
    const Routes::Ports& from = routes.ports(a);
    const Routes::Ports& to = routes.ports(b);
    const double load_of_pairs =
        length * pairs * (from.rack == to.rack ? in_rack_ratio() : beyond_ratio());
    load(from.egress, -load_of_pairs);
    load(to.ingress, -load_of_pairs);
    if (from.rack != to.rack) {
      load(routes.cable(from.rack).up, -load_of_pairs);
      load(routes.cable(to.rack).down, -load_of_pairs);
    }
    const Routes::Route route = routes.between_hosts(a, b);
    for (const int resource : route.resources) load(resource, load_of_pairs);
    alpha_ = std::max(alpha_, route.cost.alpha);
  }
}

}  // namespace q7x2
