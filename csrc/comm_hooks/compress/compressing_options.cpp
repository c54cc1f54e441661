// The options of all compressing hooks, each described in one place.
#include "comm_hooks/compress/compressing_options.h"

namespace q7x2 {

OptionFields<CompressingOptions> compressing_fields() {
  using Options = CompressingOptions;
  return OptionFields<Options>()
      .add(
          "start_iter", [](Options & o) -> auto& { return o.full_precision.start; },
          "The number of first steps in full precision.")
      .add(
          "burst_every", [](Options & o) -> auto& { return o.full_precision.period; },
          "After the first steps, the last `burst_steps` of every `burst_every` steps are in full "
          "precision; 0: none.")
      .add(
          "burst_steps", [](Options & o) -> auto& { return o.full_precision.length; },
          "The number of steps of a burst.")
      .add("use_error_feedback", &Options::error_feedback,
           "What the compressor loses is added to the next gradient.")
      .add(
          "signal", [](Options & o) -> auto& { return o.transform.name; },
          "What is compressed: gradient, accumulated, averaged, lion, global or difference "
          "(gradient_transform.h).")
      .add(
          "momentum", [](Options & o) -> auto& { return o.transform.momentum; },
          "The factor f of the transform.")
      .add(
          "kept_momentum", [](Options & o) -> auto& { return o.transform.kept_momentum; },
          "The factor k of the transform lion.")
      .add("clip_norm", &Options::clip_norm,
           "The largest L2 norm that a gradient may have on one rank, before it is divided by the "
           "number of ranks; 0: any.",
           {.least = 0});
}

}  // namespace q7x2
