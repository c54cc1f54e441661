// The decisions of policies: how each parameter's gradient is sent, and what is measured.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace q7x2 {

/// How the gradient of one parameter is sent. It applies to parameters that the hook compresses;
/// others are sent whole.
struct ParameterPolicy {
  bool whole = false;      ///< not compressed in these steps; its residual is sent too
  bool skip = false;       ///< not sent: it is added to the residual, and its mean is zero
  std::string compressor;  ///< name of a codec, or a rank; empty: as in the hook's options
};

/// Equal on all ranks. Applies from the next step on.
struct Decision {
  /// by parameter number; those beyond the end have the default policy
  std::vector<ParameterPolicy> policies;
  bool measures = false;  ///< whether the next steps compute facts (facts.h)
  /// Codecs whose errors the facts contain.
  std::vector<std::string> candidates;

  const ParameterPolicy& of(size_t parameter) const {
    static const ParameterPolicy plain;
    return parameter < policies.size() ? policies[parameter] : plain;
  }
};

}  // namespace q7x2
