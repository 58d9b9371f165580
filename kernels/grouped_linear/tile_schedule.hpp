#pragma once
/// Which output tile a block computes next, walked on the device from the experts' row offsets: no tile list in
/// memory, no host synchronisation, any distribution of tokens.
///
/// The product is computed transposed, weights as the 256 rows of a tile and tokens as its columns, because then the
/// token side may be any multiple of 16 and an expert with 5 tokens does not pay for 128. An expert's tokens are cut
/// into the fewest tiles of at most 128, all of one width but the last.
///
/// Blocks work alone or in clusters of two. A cluster takes two token tiles of one weight tile, so that each block
/// loads half of the weights for both; an odd last token tile is shared out by weight tiles instead. Token tiles come
/// in bands of 16: inside a band the weight tile is the slow index, so that weights are read from memory once per band
/// and the band's tokens stay in the L2 cache.

#if defined(__CUDACC__)
#define MOEPLAN_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define MOEPLAN_HOST_DEVICE inline
#endif

namespace moeplan::kernels::grouped_linear {

inline constexpr int tile_tokens = 128; ///< most tokens of a tile
inline constexpr int tile_rows = 256;   ///< weight rows of a tile (gated: 128 of each half)
inline constexpr int band_tiles = 16;   ///< token tiles that share one pass over the weights

/// One output tile; 16 bytes, as a block's dealing thread hands it to the others (dealing.cuh).
struct alignas(16) Tile {
    int expert;
    int row_tile;        ///< weight rows row_tile * 256 and on
    int token0;          ///< first row of the sorted tokens
    short tokens;        ///< valid tokens, 1 to 128; 0: no tile, there are no more
    bool shares_weights; ///< the other block of the cluster computes the same weight tile
    bool store;          ///< false: computed only to keep the cluster in step
};

/// Walks items in increasing order. `offsets[e]` to `offsets[e + 1]` are expert e's rows; tiles have at most `most`
/// tokens.
template <int cluster, int most = tile_tokens>
class TileWalk {
public:
    MOEPLAN_HOST_DEVICE TileWalk(const int* offsets, int experts, int row_tiles)
        : offsets_(offsets), experts_(experts), row_tiles_(row_tiles), end_(offsets[0]) {
        enter(0);
    }

    /// Of all experts, once `find` has found no more.
    MOEPLAN_HOST_DEVICE int items() const { return base_; }

    /// Finds item `item` (never smaller than the last one asked for) for block `rank` of the cluster.
    /// False when there are no more.
    MOEPLAN_HOST_DEVICE bool find(int item, int rank, Tile& tile) {
        while (expert_ < experts_ && item >= base_ + items_) {
            base_ += items_;
            enter(expert_ + 1);
        }
        if (expert_ >= experts_) return false;
        const int local = item - base_;
        const int groups = tiles_ / cluster;
        int token_tile;
        tile.expert = expert_;
        tile.store = true;
        if (local < groups * row_tiles_) {
            constexpr int band_groups = band_tiles / cluster;
            const int band = local / (band_groups * row_tiles_);
            const int in_band = local - band * band_groups * row_tiles_;
            const int left = groups - band * band_groups;
            const int width = left < band_groups ? left : band_groups;
            tile.row_tile = in_band / width;
            token_tile = (band * band_groups + in_band % width) * cluster + rank;
            tile.shares_weights = cluster > 1;
        } else {
            tile.row_tile = (local - groups * row_tiles_) * cluster + rank;
            token_tile = tiles_ - 1;
            tile.shares_weights = false;
            if (tile.row_tile >= row_tiles_) {
                tile.row_tile = row_tiles_ - 1;
                tile.store = false;
            }
        }
        const int width = tiles_ <= 1 ? count_ : ((count_ + tiles_ - 1) / tiles_ + 15) / 16 * 16, from = token_tile * width;
        tile.token0 = end_ - count_ + from;
        tile.tokens = static_cast<short>(count_ - from < width ? count_ - from : width);
        return true;
    }

private:
    /// Dozens of experts with few tiles are passed from one item to the next: no division by a variable.
    MOEPLAN_HOST_DEVICE void enter(int expert) {
        expert_ = expert;
        if (expert >= experts_) return;
        count_ = offsets_[expert + 1] - end_;
        end_ += count_;
        tiles_ = (count_ + most - 1) / most;
        const int groups = tiles_ / cluster;
        const int odd = tiles_ - groups * cluster;
        items_ = groups * row_tiles_ + (odd != 0 ? (row_tiles_ + cluster - 1) / cluster : 0);
    }

    const int* offsets_;
    int experts_;
    int row_tiles_;
    int expert_ = 0;
    int base_ = 0;  // first item of the expert
    int end_;       // behind its last row
    int count_ = 0;
    int tiles_ = 0;
    int items_ = 0;
};

} // namespace moeplan::kernels::grouped_linear
