// Dense: every gradient is sent whole. Without a cast the result is bit-identical to DDP's without
// a hook: multiply by 1 / ranks, then sum. With a cast, gradients are rounded to 16 bits before and
// after the sum, which halves the bytes.
//
//   one collective: B bytes of gradients, or B/2
//
// It keeps no state. fp16 overflows above 65504 and loses small gradients below 6e-8; bf16 has
// fp32's range and 8 bits of precision.
#include "comm_hooks/run/dense.h"

namespace q7x2 {
namespace {

class Dense final : public Hook {
 public:
  Dense(const HookContext& context, std::optional<at::ScalarType> dtype)
      : Hook(context), dtype_(dtype) {}

  Phases reduce(Bucket& bucket) override {
    if (!dtype_ || *dtype_ == bucket.buffer.scalar_type() || bucket.buffer.is_sparse()) {
      bucket.buffer.mul_(1.0 / context_.world_size);
      co_await bucket.all_reduce(bucket.buffer, Rest::kNone);
      co_return;
    }
    at::Tensor message;
    {
      const PhaseTimer timer = bucket.time("encode");
      message = bucket.buffer.to(*dtype_).mul_(1.0 / context_.world_size);
    }
    co_await bucket.all_reduce(message, Rest::kNone);
    const PhaseTimer timer = bucket.time("decode");
    bucket.buffer.copy_(message);
  }

 private:
  const std::optional<at::ScalarType> dtype_;
};

}  // namespace

std::unique_ptr<Hook> make_dense(const HookContext& context, std::optional<at::ScalarType> dtype) {
  return std::make_unique<Dense>(context, dtype);
}

}  // namespace q7x2
