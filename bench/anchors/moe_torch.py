"""Times torch._grouped_mm at the shapes of bench/grouped_linear.cu, by the same protocol: 192 MB are written before each
sample, CUDA events, median of 11. Usage: moe_torch.py [experts | chain]; chain: permute and up product, down product and weighted unpermute, at the shapes of
bench/moe_block.cu. Needs torch 2.11 or later and a Hopper GPU."""
import torch, sys
chain=sys.argv[1:]==['chain']
E=int(sys.argv[1]) if len(sys.argv)>1 and not chain else 64
flush=torch.empty(192<<20,dtype=torch.uint8,device='cuda')
def med(f,n=11):
    f(); ts=[]
    for i in range(n):
        a=torch.cuda.Event(enable_timing=True); b=torch.cuda.Event(enable_timing=True)
        flush.fill_(i); a.record(); f(); b.record(); b.synchronize(); ts.append(a.elapsed_time(b))
    return sorted(ts)[n//2]
def times_chain(T,E,k,h,i):
    chosen=torch.rand(T,E,device='cuda').topk(k).indices.flatten()
    order=chosen.argsort(stable=True); back=order.argsort(); token=order//k; off=torch.bincount(chosen,minlength=E).cumsum(0).int()
    x=torch.randn(T,h,device='cuda',dtype=torch.bfloat16); w=torch.rand(T,k,1,device='cuda',dtype=torch.bfloat16)
    up=torch.randn(E,2*i,h,device='cuda',dtype=torch.bfloat16)*h**-.5; down=torch.randn(E,h,i,device='cuda',dtype=torch.bfloat16)*i**-.5
    act=torch.randn(T*k,i,device='cuda',dtype=torch.bfloat16); xs=x.index_select(0,token)
    mm=lambda a,b: torch._grouped_mm(a,b.transpose(-2,-1),offs=off)
    un=lambda y: (y.index_select(0,back).view(T,k,h)*w).sum(1)
    y=mm(act,down)
    f=[med(g) for g in (lambda: mm(x.index_select(0,token),up),lambda: mm(xs,up),lambda: un(mm(act,down)),lambda: mm(act,down),lambda: un(y))]
    print(f'torch T{T} E{E} k{k} {h}/{i}: permute+up {f[0]:.4f} up alone {f[1]:.4f} down+unpermute {f[2]:.4f} down alone {f[3]:.4f} unpermute {f[4]:.4f}',flush=True)
if chain:
    times_chain(8192,64,8,2304,1024); times_chain(8192,256,8,7168,2048); sys.exit()
for name,K,N in (('up7168x4096',7168,4096),('dn2048x7168',2048,7168),('up2304x2048',2304,2048),('dn1024x2304',1024,2304)):
    w=torch.randn(E,N,K,device='cuda',dtype=torch.bfloat16)*K**-.5
    for t in (16,64,128,256,1024):
        x=torch.randn(E*t,K,device='cuda',dtype=torch.bfloat16); dy=torch.randn(E*t,N,device='cuda',dtype=torch.bfloat16)
        off=torch.arange(1,E+1,device='cuda',dtype=torch.int32)*t
        f=med(lambda: torch._grouped_mm(x,w.transpose(-2,-1),offs=off))
        d=med(lambda: torch._grouped_mm(dy,w,offs=off))
        print(f'torch {name} E{E} t{t} fwd {f:.4f} dX {d:.4f}',flush=True)
