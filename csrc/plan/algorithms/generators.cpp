// The table of algorithms.
#include "plan/algorithms/generators.h"

namespace q7x2 {

// One line per algorithm; among equally cheap algorithms the first is chosen.
#define Q7X2_ALGORITHMS(ALGORITHM) \
  ALGORITHM(direct)                \
  ALGORITHM(recursive_doubling)    \
  ALGORITHM(binomial_tree)         \
  ALGORITHM(chain)                 \
  ALGORITHM(sra)                   \
  ALGORITHM(ring)                  \
  ALGORITHM(torus)                 \
  ALGORITHM(halving_doubling)      \
  ALGORITHM(double_binary_tree)    \
  ALGORITHM(ccube)                 \
  ALGORITHM(hierarchical)          \
  ALGORITHM(blueconnect)           \
  ALGORITHM(blink)                 \
  ALGORITHM(multitree)             \
  ALGORITHM(aggregator)            \
  ALGORITHM(servers)               \
  ALGORITHM(rack_servers)          \
  ALGORITHM(shares)                \
  ALGORITHM(earliest_edge)         \
  ALGORITHM(pairwise)              \
  ALGORITHM(dissemination)

#define Q7X2_DECLARE(name) std::vector<Generator> name##_generators();
Q7X2_ALGORITHMS(Q7X2_DECLARE)
#undef Q7X2_DECLARE

std::span<const Generator> generators() {
  static const std::vector<Generator> table = [] {
    std::vector<Generator> all;
#define Q7X2_APPEND(name) \
  for (Generator & generator : name##_generators()) all.push_back(std::move(generator));
    Q7X2_ALGORITHMS(Q7X2_APPEND)
#undef Q7X2_APPEND
    return all;
  }();
  return table;
}

}  // namespace q7x2
