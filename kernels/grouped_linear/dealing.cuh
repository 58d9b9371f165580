#pragma once
/// How the items of a persistent launch come to its blocks, and from a block's dealing thread to the warps that load and
/// multiply.
///
/// With a counter in device memory a block (a cluster: its first block, for both) takes the next item when its multiplying
/// warps begin the one before. Blocks that find no multiprocessor at first, because a collective's kernels sit on
/// it, then leave nothing behind: were the items divided beforehand, the launch would wait for such blocks' whole shares.
/// The order of items is the same, and no result depends on who computes it.
///
/// Every block takes items until the first that is not there, so the counter ends at items + blocks, and whoever takes the
/// last of these sets it to zero for the next launch.

#include "kernels/base/ptx.cuh"
#include "kernels/grouped_linear/tile_schedule.hpp"

namespace moeplan::kernels::grouped_linear {

/// Tiles on their way to a block's warps; of several places, so that the warps that load are ahead.
template <class T, int places = 2>
struct Hand {
    T tiles[places];
    ptx::Barrier full[places], empty[places];

    /// By one thread; `readers` are the threads that read each tile.
    __device__ __forceinline__ void init(int readers) {
        for (int i = 0; i < places; ++i) {
            ptx::barrier_init(&full[i], 1);
            ptx::barrier_init(&empty[i], readers);
        }
    }
};

/// A thread that reads all tiles. (One lane could speak for its warp; racecheck does not see that.)
template <class T, int places>
class Reader {
public:
    __device__ __forceinline__ explicit Reader(Hand<T, places>& hand) : hand_(hand) {}
    /// The next tile; it stays until it is released.
    __device__ __forceinline__ const T& read() {
        ptx::barrier_wait(&hand_.full[at_.stage], at_.parity);
        return hand_.tiles[at_.stage];
    }
    __device__ __forceinline__ void release() {
        ptx::barrier_arrive(&hand_.empty[at_.stage]);
        at_.advance();
    }
    /// Both at once.
    __device__ __forceinline__ T copy() {
        const T tile = read();
        release();
        return tile;
    }

private:
    Hand<T, places>& hand_;
    ptx::RingPosition<places> at_;
};

/// What the first block of a cluster hands to the second. A block's warps are at most a ring of 4 stages before the other
/// block's, so 4 tiles of one stage, and its dealing thread 2 tiles before them: of 8 places none is overwritten unread.
struct Passed {
    static constexpr int places = 8;
    ptx::Barrier there[places];
    int item[places];
};

/// The numbers of a block's items, by its dealing thread.
template <int cluster>
class Items {
public:
    Items() = default;
    /// Before the block's (the cluster's) first barrier, which hides the latency. `passed` is initialised here.
    __device__ __forceinline__ Items(int* next, Passed* passed, int rank) : next_(next), passed_(passed), rank_(rank) {
        if (cluster > 1 && next != nullptr)
            for (int i = 0; i < Passed::places; ++i) {
                ptx::barrier_init(&passed->there[i], 1);
                if (rank != 0) ptx::barrier_arrive_expect(&passed->there[i], sizeof(int));
            }
        if (next == nullptr) item_ = blockIdx.x / cluster;
        else if (rank == 0) item_ = atomicAdd(next, 1);
    }

    /// After it.
    __device__ __forceinline__ int first() {
        if (next_ != nullptr) hand_over();
        return item_;
    }

    __device__ __forceinline__ int take() {
        if (next_ == nullptr) return item_ += gridDim.x / cluster;
        if (rank_ == 0) item_ = atomicAdd(next_, 1);
        hand_over();
        return item_;
    }

    /// Behind the last of `items`.
    __device__ __forceinline__ void leave(int items) const {
        if (next_ != nullptr && rank_ == 0 && item_ == items + static_cast<int>(gridDim.x) / cluster - 1) *next_ = 0;
    }

private:
    __device__ __forceinline__ void hand_over() {
        if constexpr (cluster > 1) {
            ptx::Barrier* there = &passed_->there[at_.stage];
            int* place = &passed_->item[at_.stage];
            if (rank_ == 0) {
                asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                                 ptx::map_to_rank(ptx::shared_address(place), 1)),
                             "r"(item_), "r"(ptx::map_to_rank(ptx::shared_address(there), 1))
                             : "memory");
            } else {
                ptx::barrier_wait_cluster(there, at_.parity);
                item_ = *place;
                ptx::barrier_arrive_expect(there, sizeof(int)); // for its next turn
            }
            at_.advance();
        }
    }

    int* next_ = nullptr;
    Passed* passed_ = nullptr;
    int rank_ = 0;
    int item_ = 0;
    ptx::RingPosition<Passed::places> at_;
};

/// A block's tiles of a walk, by its dealing thread.
template <int cluster, class Walk>
class Dealer {
public:
    __device__ __forceinline__ Dealer(const Items<cluster>& items, const Walk& walk, int rank) : items_(items), walk_(walk), rank_(rank) {}

    /// Hands on one tile more, or the news (no tokens) that there are none; false then.
    template <int places>
    __device__ __forceinline__ bool deal(Hand<Tile, places>& hand, ptx::RingPosition<places>& at) {
        ptx::barrier_wait(&hand.empty[at.stage], at.parity);
        const int item = begun_ ? items_.take() : items_.first();
        begun_ = true;
        Tile tile;
        const bool more = walk_.find(item, rank_, tile);
        if (!more) {
            tile.tokens = 0;
            items_.leave(walk_.items());
        }
        hand.tiles[at.stage] = tile;
        ptx::barrier_arrive(&hand.full[at.stage]);
        at.advance();
        return more;
    }
    template <int places>
    __device__ __forceinline__ void deal_all(Hand<Tile, places>& hand) {
        ptx::RingPosition<places> at{0, 1};
        while (deal(hand, at)) {}
    }

private:
    Items<cluster> items_;
    Walk walk_;
    int rank_;
    bool begun_ = false;
};

} // namespace moeplan::kernels::grouped_linear
