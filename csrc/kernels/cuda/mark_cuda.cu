// The select stage on a GPU: which elements of a tensor are sent.
//
//   1  the boundary: the k-th largest magnitude, in three passes over the tensor, or over a sample
//      of it. A pass counts, in a table, the magnitudes that agree with the bits known so far
//   2  one pass counts, by tile, the elements beyond the boundary and on it
//   3  sums of these counts over the preceding tiles: the rank of each tile
//   4  one pass writes the bits; only the first elements on the boundary get one
//
// The host waits for nothing in between, and the result does not depend on the order of the
// threads.
#include "device/launch.h"
#include "kernels/codec/random.h"
#include "kernels/codec/sparse_elements.h"
#include "kernels/codec/sparse_select.h"
#include "kernels/cuda/codec_cuda.h"
#include "kernels/cuda/groups_cuda.h"
#include "kernels/cuda/tiles_cuda.h"

namespace q7x2 {
namespace {

constexpr unsigned kBucketsOfThread = kRadixBuckets / kThreads;
constexpr uint32_t kAllTies = ~0U;

/// What is known about the boundary so far.
struct Boundary {
  uint32_t prefix;   // the upper bits of the k-th largest
  uint32_t wanted;   // its rank among those that agree in these bits, from 1
  uint32_t least;    // magnitudes above this are sent,
  uint32_t ties;     // and this many equal ones
  uint32_t extreme;  // number of extreme elements found
  uint32_t sizes[kRadixBuckets];
};
static_assert(sizeof(Boundary) <= kMarkTableBytes);

struct Scratch {
  Boundary* boundary;
  uint32_t* larger;  // by tile
  uint32_t* equal;   // by tile; at the end: in all preceding tiles
};

Scratch scratch_at(std::byte* memory, size_t count) {
  auto* const boundary = reinterpret_cast<Boundary*>(memory);
  auto* const tiles = reinterpret_cast<uint32_t*>(memory + kMarkTableBytes);
  return {boundary, tiles, tiles + mark_tiles(count)};
}

__device__ __forceinline__ float number_at(const MarkSource& source, size_t i) {
  return source.add == nullptr ? source.values[i] : source.values[i] + source.add[i];
}

/// Magnitudes of a whole tensor, and of a sample of it.
struct WholeTensor {
  MarkSource source;
  __host__ __device__ size_t size() const { return source.count; }
  __device__ uint32_t operator[](size_t i) const { return magnitude_bits(number_at(source, i)); }
};
struct SampledTensor {
  MarkSource source;
  Sample sample;
  __host__ __device__ size_t size() const { return sample.size(); }
  __device__ uint32_t operator[](size_t i) const {
    const size_t piece = i / sample.length;
    const size_t at = sample.begin(piece) + (i - piece * sample.length);
    return magnitude_bits(number_at(source, at));
  }
};

__global__ void __launch_bounds__(kThreads)
    begin_boundary(Boundary* boundary, uint32_t wanted, uint32_t least) {
  for (unsigned i = threadIdx.x; i < kRadixBuckets; i += kThreads) boundary->sizes[i] = 0;
  if (threadIdx.x != 0) return;
  boundary->prefix = 0;
  boundary->wanted = wanted;
  boundary->least = least;
  boundary->ties = kAllTies;
  boundary->extreme = 0;
}

/// Counts the magnitudes that agree in the bits from `known` on, by their bits from `shift` on.
template <class Magnitudes>
__global__ void __launch_bounds__(kThreads)
    count_magnitudes(Magnitudes magnitudes, Boundary* boundary, int known, int shift) {
  __shared__ uint32_t sizes[kRadixBuckets];
  for (unsigned i = threadIdx.x; i < kRadixBuckets; i += kThreads) sizes[i] = 0;
  __syncthreads();
  const uint32_t prefix = boundary->prefix;
  const uint32_t mask = (1U << (known - shift)) - 1;
  const size_t threads = static_cast<size_t>(gridDim.x) * kThreads;
  for (size_t i = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x; i < magnitudes.size();
       i += threads) {
    const uint32_t magnitude = magnitudes[i];
    if (magnitude >> known == prefix) atomicAdd(&sizes[(magnitude >> shift) & mask], 1U);
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < kRadixBuckets; i += kThreads) {
    if (sizes[i] > 0) atomicAdd(&boundary->sizes[i], sizes[i]);
  }
}

/// Runs as one block. Each thread adds up some neighbouring buckets; the first thread has the upper
/// ones.
__global__ void __launch_bounds__(kThreads)
    narrow_boundary(Boundary* boundary, int known, int shift, bool keeps_all_ties) {
  __shared__ uint32_t sums[kThreads];
  const unsigned upper = kRadixBuckets - 1 - threadIdx.x * kBucketsOfThread;
  uint32_t own = 0;
  for (unsigned i = 0; i < kBucketsOfThread; ++i) own += boundary->sizes[upper - i];
  sums[threadIdx.x] = own;
  __syncthreads();
  uint32_t above = 0;
  for (unsigned i = 0; i < threadIdx.x; ++i) above += sums[i];
  uint32_t wanted = boundary->wanted;
  const uint32_t prefix = boundary->prefix;
  __syncthreads();  // all threads have read what one of them now writes
  if (above < wanted && wanted <= above + own) {
    wanted -= above;
    unsigned bucket = upper;
    while (boundary->sizes[bucket] < wanted) wanted -= boundary->sizes[bucket--];
    const uint32_t narrowed = prefix << (known - shift) | bucket;
    boundary->prefix = narrowed;
    boundary->wanted = wanted;
    if (shift == 0) {
      const bool is_number = narrowed > 0 && narrowed < kInfinityBits;
      const uint32_t least = narrowed > 0 ? narrowed : 1;
      boundary->least = least < kInfinityBits ? least : kInfinityBits;
      boundary->ties = is_number && !keeps_all_ties ? wanted : kAllTies;
    }
  }
  __syncthreads();  // all threads have read the counts
  for (unsigned i = 0; i < kBucketsOfThread; ++i) boundary->sizes[upper - i] = 0;
}

/// Whether an element is beyond the boundary, or on it.
struct Verdict {
  bool is_larger;
  bool is_equal;
};

// All threads of a warp process neighbours at the same time, in order, also beyond the end.

struct ByMagnitude {
  const Boundary* boundary;
  __device__ Verdict verdict(size_t, uint32_t magnitude, bool) const {
    return {magnitude > boundary->least, magnitude == boundary->least};
  }
};
struct ByRandom {
  uint64_t key;
  uint32_t most;
  __device__ Verdict verdict(size_t i, uint32_t, bool) const {
    return {random_bits(random_stream(key, i), static_cast<uint32_t>(i)) <= most, false};
  }
};
struct AmongNeighbours {
  unsigned n;
  unsigned m;
  __device__ Verdict verdict(size_t i, uint32_t magnitude, bool is_there) const {
    const uint32_t own = is_there ? magnitude : 0;
    const unsigned lane = static_cast<unsigned>(i) % kTeam;
    const unsigned begin = lane / m * m;
    unsigned larger = 0;
    for (unsigned j = begin; j < begin + m; ++j) {
      const uint32_t other = __shfl_sync(kAllLanes, own, static_cast<int>(j));
      larger += (other > own || (other == own && j < lane)) ? 1 : 0;
    }
    return {(larger < n && own > 0) || own >= kInfinityBits, false};
  }
};

/// Calls `body` for the calling thread's elements of a tile. For missing elements of the last tile
/// it passes the index after the end.
template <class Rule, class Body>
__device__ void for_tile(const MarkSource& source, Rule rule, size_t tile, Body body) {
  for (unsigned row = 0; row < kRows; ++row) {
    const size_t i = tile * kMarkTile + row * kThreads + threadIdx.x;
    const bool is_there = i < source.count;
    const uint32_t magnitude = is_there ? magnitude_bits(number_at(source, i)) : 0;
    Verdict verdict = rule.verdict(i, magnitude, is_there);
    verdict.is_larger = verdict.is_larger && is_there;
    verdict.is_equal = verdict.is_equal && is_there;
    body(row, verdict, magnitude);
  }
}

template <class Rule>
__global__ void __launch_bounds__(kThreads)
    count_marked(MarkSource source, Rule rule, uint32_t extreme, Boundary* boundary,
                 uint32_t* larger, uint32_t* equal) {
  __shared__ uint32_t counts[3];
  for (size_t tile = blockIdx.x; tile < mark_tiles(source.count); tile += gridDim.x) {
    if (threadIdx.x < 3) counts[threadIdx.x] = 0;
    __syncthreads();
    uint32_t own[3] = {};
    for_tile(source, rule, tile, [&](unsigned, Verdict verdict, uint32_t magnitude) {
      own[0] += verdict.is_larger ? 1 : 0;
      own[1] += verdict.is_equal ? 1 : 0;
      own[2] += magnitude >= extreme ? 1 : 0;
    });
    for (int k = 0; k < 3; ++k) {
      const uint32_t of_warp = __reduce_add_sync(kAllLanes, own[k]);
      if (threadIdx.x % kTeam == 0) atomicAdd(&counts[k], of_warp);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      larger[tile] = counts[0];
      equal[tile] = counts[1];
      if (counts[2] > 0) atomicAdd(&boundary->extreme, counts[2]);
    }
    __syncthreads();  // the counts may be overwritten
  }
}

/// Runs as one block. Each thread adds up some neighbouring tiles.
__global__ void __launch_bounds__(kThreads)
    rank_tiles(size_t tiles, const Boundary* boundary, const uint32_t* larger, uint32_t* equal,
               uint32_t* before, MarkCounts* counts) {
  __shared__ uint32_t sums[2][kThreads];
  const size_t of_thread = (tiles + kThreads - 1) / kThreads;
  const size_t begin = of_thread * threadIdx.x < tiles ? of_thread * threadIdx.x : tiles;
  const size_t end = begin + of_thread < tiles ? begin + of_thread : tiles;
  uint32_t own_larger = 0;
  uint32_t own_equal = 0;
  for (size_t tile = begin; tile < end; ++tile) {
    own_larger += larger[tile];
    own_equal += equal[tile];
  }
  sums[0][threadIdx.x] = own_larger;
  sums[1][threadIdx.x] = own_equal;
  __syncthreads();
  uint32_t larger_before = 0;
  uint32_t equal_before = 0;
  for (unsigned i = 0; i < threadIdx.x; ++i) {
    larger_before += sums[0][i];
    equal_before += sums[1][i];
  }
  const uint32_t ties = boundary->ties;
  const auto rank = [&] { return larger_before + (equal_before < ties ? equal_before : ties); };
  for (size_t tile = begin; tile < end; ++tile) {
    const uint32_t here = equal[tile];
    before[tile] = rank();
    equal[tile] = equal_before;
    larger_before += larger[tile];
    equal_before += here;
  }
  if (threadIdx.x == kThreads - 1) *counts = {rank(), boundary->extreme};
}

template <class Rule>
__global__ void __launch_bounds__(kThreads)
    write_mask(MarkSource source, Rule rule, const Boundary* boundary, const uint32_t* equal_before,
               uint32_t* mask) {
  __shared__ uint32_t larger[kWords];
  __shared__ uint32_t equal[kWords];
  const size_t words = (source.count + 63) / 64 * 2;  // the last one may be beyond the end
  const uint32_t ties = boundary->ties;
  for (size_t tile = blockIdx.x; tile < mark_tiles(source.count); tile += gridDim.x) {
    for_tile(source, rule, tile, [&](unsigned row, Verdict verdict, uint32_t) {
      const uint32_t is_larger = __ballot_sync(kAllLanes, verdict.is_larger ? 1 : 0);
      const uint32_t is_equal = __ballot_sync(kAllLanes, verdict.is_equal ? 1 : 0);
      if (threadIdx.x % kTeam != 0) return;
      larger[row * kWarps + threadIdx.x / kTeam] = is_larger;
      equal[row * kWarps + threadIdx.x / kTeam] = is_equal;
    });
    __syncthreads();
    const uint32_t in_front = equal_before[tile];
    const uint32_t left = in_front < ties ? ties - in_front : 0;
    for (unsigned i = threadIdx.x; i < kWords && tile * kWords + i < words; i += kThreads) {
      uint32_t kept = left > 0 ? equal[i] : 0;
      if (kept != 0 && left < kMarkTile) {  // the last one that is sent may be in this tile
        uint32_t rank = 0;
        for (unsigned j = 0; j < i; ++j) rank += __popc(equal[j]);
        for (uint32_t bits = kept; bits != 0; bits &= bits - 1, ++rank) {
          if (rank >= left) kept ^= bits & (~bits + 1);
        }
      }
      mask[tile * kWords + i] = larger[i] | kept;
    }
    __syncthreads();  // the words may be overwritten
  }
}

constexpr const char* kWhat = "selecting on the GPU";

template <class Magnitudes>
void find_boundary(const Magnitudes& magnitudes, size_t wanted, bool keeps_all_ties,
                   Boundary* boundary, void* stream) {
  device::launch(kWhat, begin_boundary, {1, kThreads}, stream, boundary,
                 static_cast<uint32_t>(wanted), 1U);
  int known = kMagnitudeBits;
  for (const int shift : kRadixShifts) {
    device::launch(kWhat, count_magnitudes<Magnitudes>, shape_for(magnitudes.size(), kMarkTile),
                   stream, magnitudes, boundary, known, shift);
    device::launch(kWhat, narrow_boundary, {1, kThreads}, stream, boundary, known, shift,
                   keeps_all_ties);
    known = shift;
  }
}

template <class Rule>
void mark_by(Rule rule, const MarkSource& source, uint32_t extreme, const Scratch& scratch,
             const Marks& to, MarkCounts* counts, void* stream) {
  const size_t tiles = mark_tiles(source.count);
  const device::LaunchShape shape = shape_for(tiles, 1);
  device::launch(kWhat, count_marked<Rule>, shape, stream, source, rule, extreme, scratch.boundary,
                 scratch.larger, scratch.equal);
  device::launch(kWhat, rank_tiles, {1, kThreads}, stream, tiles, scratch.boundary, scratch.larger,
                 scratch.equal, to.before, counts);
  device::launch(kWhat, write_mask<Rule>, shape, stream, source, rule, scratch.boundary,
                 scratch.equal, reinterpret_cast<uint32_t*>(to.mask));
}

}  // namespace

void mark_cuda(const CodecSpec& spec, const MarkSource& source, const Marks& to, MarkCounts* counts,
               std::byte* memory, void* stream) {
  const Scratch scratch = scratch_at(memory, source.count);
  Boundary* const boundary = scratch.boundary;
  const bool is_half = spec.value.kind == ValueKind::kFloat16;
  const uint32_t extreme = float_to_bits(is_half ? kExtremeOfFloat16 : kExtreme);
  const auto by = [&](auto rule) { mark_by(rule, source, extreme, scratch, to, counts, stream); };
  const auto begin_at = [&](uint32_t least) {
    device::launch(kWhat, begin_boundary, {1, kThreads}, stream, boundary, 0U, least);
  };
  switch (spec.select) {
    case SelectKind::kTopK: {
      const size_t wanted = selected_count(spec.amount, source.count);
      if (wanted >= source.count) {
        begin_at(1);
      } else {
        find_boundary(WholeTensor{source}, wanted, /*keeps_all_ties=*/false, boundary, stream);
      }
      return by(ByMagnitude{boundary});
    }
    case SelectKind::kSampled: {
      const Sample sample = sample_of(source.count, source.shared_key);
      find_boundary(SampledTensor{source, sample}, selected_count(spec.amount, sample.size()),
                    /*keeps_all_ties=*/true, boundary, stream);
      return by(ByMagnitude{boundary});
    }
    case SelectKind::kThreshold:
      begin_at(threshold_bits(spec.amount));
      return by(ByMagnitude{boundary});
    case SelectKind::kRandomK:
      begin_at(0);
      return by(ByRandom{source.shared_key, static_cast<uint32_t>(random_limit(spec.amount) - 1)});
    default:
      begin_at(0);
      return by(AmongNeighbours{static_cast<unsigned>(spec.n), static_cast<unsigned>(spec.m)});
  }
}

}  // namespace q7x2
