// Coded hierarchical all-reduce: dense within hosts, where memory is fast, compressed between them.
//
//   host 0: 0 1     part 0 (led by 0 and 2):  1 -> 0 \ encode               / -> 1, as it came
//   host 1: 2 3                               3 -> 2 / 2: c -> 0, C -> 2    \ -> 3, as it came
//                   part 1 (led by 1 and 3):  the same, owned by host 1, ...
//
// The parts of h hosts with k leaders each: part (g, j) is led by the j-th rank of every host and
// owned by that of host g. Within a host the leader adds what the others have, and encodes the
// partial sum once; owners fold coded partial sums; the owner's message goes on to everybody, and
// everybody decodes it.
//
//   steps     2 between hosts, 2 within
//   bytes     a leader sends 2 c B/k (h-1)/h between hosts (c: coded / dense size); a host 2 c B
//             (h-1)/h, however many ranks it has, where coded SRA sends m times as much
//   encodes   h-1 parts of B/(h k) a leader and one sum: less work, and fewer roundings, than SRA
// It wins where several ranks of a host share a network interface.
// As hierarchical (Cho et al., "BlueConnect", 2019) across which coded SRA runs.
#include <algorithm>
#include <vector>

#include "fabric/fabric.h"
#include "plan/generators.h"
#include "plan/tree.h"

namespace q7x2 {

namespace {

using OpId = PlanBuilder::OpId;

/// The ranks of each host, hosts in the order of the Fabric, empty ones left out.
std::vector<std::vector<int>> ranks_by_host(const Fabric& fabric) {
  std::vector<std::vector<int>> hosts(fabric.hosts.size());
  for (int rank = 0; rank < fabric.world_size(); ++rank) {
    hosts[static_cast<size_t>(fabric.host_of[static_cast<size_t>(rank)])].push_back(rank);
  }
  std::erase_if(hosts, [](const auto& ranks) { return ranks.empty(); });
  return hosts;
}

int num_leaders(const std::vector<std::vector<int>>& hosts) {
  size_t least = hosts.front().size();
  for (const auto& ranks : hosts) least = std::min(least, ranks.size());
  return static_cast<int>(least);
}

class Builder {
 public:
  explicit Builder(const PlanRequest& request)
      : rank_(request.rank),
        hosts_(ranks_by_host(*request.fabric)),
        num_hosts_(static_cast<int>(hosts_.size())),
        leaders_(request.parameter),
        b_(request, "coded_hierarchical", equal_parts(num_hosts_ * leaders_)) {
    for (int host = 0; host < num_hosts_; ++host) {
      const auto& ranks = hosts_[static_cast<size_t>(host)];
      if (std::ranges::find(ranks, rank_) != ranks.end()) host_ = host;
    }
  }

  Plan build() {
    for (int part = 0; part < num_hosts_ * leaders_; ++part) {
      if (leader(host_, part) == rank_) {
        lead(part);
      } else {
        follow(part);
      }
    }
    return b_.build();
  }

 private:
  int leader(int host, int part) const {
    return hosts_[static_cast<size_t>(host)][static_cast<size_t>(part % leaders_)];
  }
  int owner(int part) const { return part / leaders_; }
  const std::vector<int>& neighbours() const { return hosts_[static_cast<size_t>(host_)]; }

  /// Gives the leader what it has, and gets the result.
  void follow(int part) {
    const int to = leader(host_, part);
    const OpId sent = b_.send(to, Block::input(part));
    const Block slot = Block::coded(next_coded_++);
    const OpId got = b_.recv(to, slot, {}, Block::input(part));
    b_.copy(slot, Block::output(part), {{got, sent}});
  }

  void lead(int part) {
    std::vector<Block> operands;  // of this host, in rank order
    std::vector<OpId> received;
    for (const int rank : neighbours()) {
      if (rank == rank_) {
        operands.push_back(Block::input(part));
        continue;
      }
      operands.push_back(Block::scratch(next_scratch_++));
      received.push_back(b_.recv(rank, operands.back(), {}, Block::input(part)));
    }
    if (owner(part) == host_) {
      own(part, std::move(operands), std::move(received));
    } else {
      contribute(part, operands, received);
    }
  }

  void contribute(int part, const std::vector<Block>& operands, const std::vector<OpId>& received) {
    const int to = leader(owner(part), part);
    const Block message = Block::coded(next_coded_++);
    Block partial = Block::input(part);
    std::vector<OpId> ready;
    if (operands.size() > 1) {
      partial = Block::scratch(next_scratch_++);
      ready = {b_.reduce(operands, partial, false, received, Block::input(part))};
    }
    const OpId coded = b_.copy(partial, message, ready, Block::input(part));
    const OpId sent = b_.send(to, message, {{coded}}, Block::input(part));
    const OpId got = b_.recv(to, message, {{sent}}, Block::input(part));
    b_.copy(message, Block::output(part), {{got}});
    pass_on(part, message, got);
  }

  void own(int part, std::vector<Block> operands, std::vector<OpId> received) {
    for (int host = 0; host < num_hosts_; ++host) {
      if (host == host_) continue;
      operands.push_back(Block::coded(next_coded_++));
      received.push_back(b_.recv(leader(host, part), operands.back(), {}, Block::input(part)));
    }
    const Block total = Block::coded(next_coded_++);
    const OpId sum = b_.reduce(operands, total, true, received, Block::input(part));
    for (int k = 1; k < num_hosts_; ++k) {
      b_.send(leader((host_ + k) % num_hosts_, part), total, {{sum}}, Block::input(part));
    }
    b_.copy(total, Block::output(part), {{sum}});
    pass_on(part, total, sum);
  }

  void pass_on(int part, Block message, OpId there) {
    for (const int rank : neighbours()) {
      if (rank != rank_) b_.send(rank, message, {{there}}, Block::input(part));
    }
  }

  const int rank_;
  const std::vector<std::vector<int>> hosts_;
  const int num_hosts_;
  const int leaders_;
  int host_ = 0;
  int next_coded_ = 0;
  int next_scratch_ = 0;
  PlanBuilder b_;
};

Plan all_reduce(const PlanRequest& request) {
  return Builder(request).build();
}

std::vector<int> all_leaders(const PlanRequest& request) {
  if (request.fabric == nullptr) return {};
  const auto hosts = ranks_by_host(*request.fabric);
  if (hosts.size() < 2 || static_cast<int>(hosts.size()) == request.world_size) return {};
  return {num_leaders(hosts)};
}

}  // namespace

std::vector<Generator> coded_hierarchical_generators() {
  return {{.name = "coded_hierarchical",
           .collective = Collective::kAllReduce,
           .generate = all_reduce,
           .max_world_size = Plan::kMaxMessages / 4,
           .parameters = all_leaders,
           .coded = true}};
}

}  // namespace q7x2
