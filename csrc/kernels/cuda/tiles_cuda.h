// How a block of a GPU processes a tile of a marked tensor (kernels/codec/marking.h): row by row,
// one element per thread.
//
// Included by the CUDA sources only.
#pragma once

#include "kernels/codec/marking.h"
#include "kernels/cuda/team_cuda.h"

namespace q7x2 {
namespace {

constexpr unsigned kWarps = kThreads / kTeam;
constexpr unsigned kRows = kMarkTile / kThreads;  // rows of a tile
constexpr unsigned kWords = kMarkTile / 32;       // words of a tile's mask

}  // namespace
}  // namespace q7x2
