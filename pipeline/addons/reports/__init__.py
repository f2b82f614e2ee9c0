"""What did runs see, do and reach, on one page? Made from the files of run folders only."""
