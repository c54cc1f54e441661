// Linkage: hosts are joined into groups while the average ease between two groups is high.
#pragma once

#include <map>
#include <utility>
#include <vector>

namespace q7x2 {

/// Two hosts, the lower number first.
using HostPair = std::pair<int, int>;
HostPair unordered(int a, int b);

/// Average linkage: the easiest pairs first, so one noisy measurement neither joins two groups nor
/// splits one.
class Linkage {
 public:
  explicit Linkage(size_t hosts);

  /// One measurement between two hosts: 1 is as good as within a group.
  void add(int a, int b, double ease);

  /// The group of each host, called by one of its hosts: groups join where the average ease between
  /// them is at least `least`.
  std::vector<int> joined(double least);

 private:
  struct Between {
    double sum = 0;
    int count = 0;
    double average() const { return count > 0 ? sum / count : 0; }
  };

  void join(int kept, int gone);

  std::vector<int> group_;
  std::map<HostPair, Between> between_;  // by groups
};

}  // namespace q7x2
