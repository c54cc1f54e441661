// The options that all compressing hooks have.
#pragma once

#include <cstddef>
#include <vector>

#include "comm_hooks/compress/gradient_transform.h"
#include "comm_hooks/compress/option_fields.h"
#include "comm_hooks/compress/schedule.h"

namespace q7x2 {

/// `compressing_fields` describes each option.
struct CompressingOptions {
  FullPrecision full_precision;
  bool error_feedback = true;
  TransformOptions transform;
  double clip_norm = 0;
  /// By parameter number: whether its gradient is never compressed.
  std::vector<bool> whole;

  bool is_whole(size_t parameter) const { return parameter < whole.size() && whole[parameter]; }
};

/// The options except `whole`, with their names in Python.
OptionFields<CompressingOptions> compressing_fields();

}  // namespace q7x2
