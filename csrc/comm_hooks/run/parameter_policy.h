// What policies decide: how each parameter's gradient travels, and what is to be measured.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace q7x2 {

/// How the gradient of one parameter travels. It holds for parameters that the hook compresses;
/// others travel whole.
struct ParameterPolicy {
  bool whole = false;      ///< not compressed in these steps; what its residual holds goes along
  bool skip = false;       ///< not sent: it is added to the residual, and its mean is zero
  std::string compressor;  ///< a codec's name, or a rank; empty: what the hook's options say
};

/// Equal on all ranks; it holds from the next step on.
struct Decision {
  std::vector<ParameterPolicy> policies;  ///< by parameter number; those beyond the end are plain
  bool measures = false;                  ///< the next steps make facts (facts.h)
  /// Codecs of which the facts tell what each would lose.
  std::vector<std::string> candidates;

  const ParameterPolicy& of(size_t parameter) const {
    static const ParameterPolicy plain;
    return parameter < policies.size() ? policies[parameter] : plain;
  }
};

}  // namespace q7x2
