#include "executor/collective/fingerprint.h"

#include "base/digest.h"

namespace q7x2 {

uint64_t fingerprint_of(const CollectiveCall& call) {
  Digest digest;
  digest.add(static_cast<uint64_t>(call.collective));
  digest.add(static_cast<uint64_t>(call.root + 1));
  digest.add(call.uneven ? 1 : call.bytes());
  digest.add(call.agreed);
  if (call.collective == Collective::kAllGather) {
    for (const Region& part : call.output) digest.add(part.bytes);
  }
  if (call.collective == Collective::kReduceScatter) {
    for (const Region& part : call.input) digest.add(part.bytes);
  }
  if (is_reduction(call.collective)) {
    digest.add(static_cast<uint64_t>(call.dtype) << 32 | static_cast<uint64_t>(call.reduce) << 24 |
               static_cast<uint64_t>(call.divisor));
  }
  digest.add(call.algorithms);
  if (call.is_direct) digest.add(1);
  if (call.coding) {
    digest.add(call.coding.codec->name());
    digest.add(static_cast<uint64_t>(call.coding.edges));
    digest.add(call.coding.keys.shared);
    digest.add(static_cast<uint64_t>(call.dtype));
  }
  return digest.value();
}

uint64_t fingerprint_of_part(uint64_t call, size_t bytes) {
  Digest digest;
  digest.add(call);
  digest.add(bytes);
  return digest.value();
}

}  // namespace q7x2
