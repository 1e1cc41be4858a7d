"""Jobs under Slurm: what a task learns from its environment, and what it asks Slurm for at its end.

``slurm_task`` reads the environment that ``srun`` and ``sbatch`` set, and ``slurm_settings`` makes
settings of it, below those that people give. ``batch_script`` writes the script that ``elasticctl
sbatch`` shows or submits. Slurm is asked through its own commands only (``slurm_calls``).
"""
