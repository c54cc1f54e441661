#include "comm_hooks/hooks.h"

#include <utility>

#include "comm_hooks/dense.h"

namespace q7x2 {
namespace {

/// One line per compressor.
struct MakeCompressor {
  const HookContext& context;
  const CompressingOptions& options;

  std::unique_ptr<Compressor> operator()(const CodecOptions& codec) const {
    return make_codec_compressor(context, codec, options.error_feedback,
                                 options.full_precision.start);
  }
  std::unique_ptr<Compressor> operator()(const LowRankOptions& low_rank) const {
    return make_low_rank(context, low_rank);
  }
  std::unique_ptr<Compressor> operator()(const FlatLowRankOptions& flat) const {
    return make_flat_low_rank(context, flat);
  }
};

}  // namespace

MakeHook compressing_hook(CompressingOptions options, CompressorOptions compressor) {
  return [options = std::move(options),
          compressor = std::move(compressor)](const HookContext& context) -> std::unique_ptr<Hook> {
    return make_compressing(context, options,
                            std::visit(MakeCompressor{context, options}, compressor));
  };
}

MakeHook dense_hook(std::optional<at::ScalarType> dtype) {
  return [dtype](const HookContext& context) { return make_dense(context, dtype); };
}

}  // namespace q7x2
