// Tally: what one round puts on each rank and each resource.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <utility>
#include <vector>

#include "plan/cost/site.h"
#include "plan/ir/schedule.h"

namespace q7x2 {

/// Adds up the messages of a round. It adds those of a cross by hosts instead of one by one: a team
/// that sends n^2 messages takes n steps. Lengths are shares of a slice.
class Tally {
 public:
  /// The messages of one rank.
  struct Rank {
    double messages_out_far = 0, messages_out_near = 0;  ///< to other hosts, and within its own
    double messages_in_far = 0, messages_in_near = 0;
    double in = 0;          ///< received as elements
    double in_near = 0;     ///< the part that comes from ranks of its host
    double in_coded = 0;    ///< received as coded messages, in elements
    double encoded = 0;     ///< sent as coded messages, each block counted once, in elements
    double exact = 0;       ///< sent as elements, each block counted once
    double staged = 0;      ///< sent to ranks of its host, each block counted once, as it travels
    double stages = 0;      ///< and how many blocks that is
    double blocks_out = 1;  ///< number of blocks in one message to each
    double parts_in = 1;    ///< blocks that what is received is folded into
    double parts_in_share = 0;  ///< their length together
  };

  Tally(const Site& site, int members);

  /// Forgets the last round and takes the next one. `ratio`: bytes of a coded message for a byte
  /// of its elements.
  void count(const Round& round, double ratio = 1);

  /// Those that take part.
  const std::vector<int>& ranks() const { return touched_; }
  const Rank& at(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  /// Resources in use, and shares of a slice through each, as they travel.
  const std::vector<int>& resources() const { return touched_resources_; }
  double through(int resource) const { return resources_[static_cast<size_t>(resource)]; }
  /// The largest of all messages, and their mean. The longest that goes to another host.
  double alpha() const { return alpha_; }
  double mean_alpha() const { return messages_ > 0 ? alpha_sum_ / messages_ : 0; }
  double longest_far() const { return longest_far_; }
  double messages() const { return messages_; }
  /// Number of hosts that send to one, by resource, over all rounds so far.
  const std::vector<int>& senders() const { return senders_; }

 private:
  void add(const Round& round, const Edge& edge);
  void add(const Round& round, const Cross& cross);
  Rank& touch(int rank);
  void load(int resource, double share);
  void load_all(const Cross& cross, double length);
  /// The same for interconnects of hosts whose ranks are bound to several NUMA nodes.
  void load_interconnects(const Cross& cross, double length);
  /// Pairs of a cross between which nothing is sent.
  std::vector<std::pair<int, int>> left_out(const Cross& cross) const;
  /// So many ranks: of the same host, of other hosts in the same rack, of other racks.
  struct Peers {
    double near = 0, in_rack = 0, beyond = 0;
    double& of(const Fabric& fabric, int from, int to) {
      if (fabric.same_host(from, to)) return near;
      return fabric.rack_of(from) == fabric.rack_of(to) ? in_rack : beyond;
    }
    double far() const { return in_rack + beyond; }
    double all() const { return near + far(); }
  };
  /// The number of those to which messages of the round are coded.
  double coded(const Peers& peers) const;
  bool codes_near() const { return coded_ == Edges::kAll; }
  bool codes_in_rack() const { return coded_ == Edges::kAll || coded_ == Edges::kHosts; }
  bool codes_beyond() const { return coded_ != Edges::kNone; }
  /// What a byte becomes on its way.
  double near_ratio() const { return codes_near() ? ratio_ : 1; }
  double in_rack_ratio() const { return codes_in_rack() ? ratio_ : 1; }
  double beyond_ratio() const { return codes_beyond() ? ratio_ : 1; }
  double ratio_of(int from, int to) const;
  /// What one rank sends to those, and receives from them.
  void send(const Round& round, int rank, const Peers& peers, double messages, double share);
  void receive(int rank, const Peers& peers, double messages, double share);

  const Site& site_;
  std::vector<Rank> ranks_;
  std::vector<bool> is_touched_;
  std::vector<int> touched_;
  std::vector<double> resources_;
  std::vector<int> touched_resources_;
  std::unordered_set<uint64_t> host_pairs_;  // those of edges
  std::vector<int> edge_senders_, senders_;
  void count_alpha(double alpha, double messages);

  double alpha_ = 0;
  double alpha_sum_ = 0;
  double longest_far_ = 0;
  double messages_ = 0;
  std::vector<bool> is_loaded_;
  // Bytes of a cross; all are zero between two crosses.
  struct Ends {
    double from = 0, to = 0;
  };
  std::vector<Ends> on_host_, in_rack_;
  std::vector<Peers> left_out_from_, left_out_to_;  // by rank
  // State of the present round.
  Edges coded_ = Edges::kNone;
  double ratio_ = 1;
};

}  // namespace q7x2
